//! Chance, from a seed: the same seed gives the same history on every machine.
//!
//! xoshiro256++ filled by `splitmix64`. Every part of a history that draws for itself has a generator
//! split off by [`Random::split`], so that one more draw in one place does not change all others.

use crate::units::{to_u64, to_usize};

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// The bits of `n`, well stirred: two numbers that differ anywhere give unrelated results.
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Random {
    /// The generator of one seed.
    pub fn new(seed: u64) -> Random {
        let mut s = seed;
        Random {
            state: [
                splitmix64(&mut s),
                splitmix64(&mut s),
                splitmix64(&mut s),
                splitmix64(&mut s),
            ],
        }
    }

    /// A generator of its own, for a part of the work that draws independently.
    pub fn split(&mut self) -> Random {
        Random::new(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c1, d1) = (c ^ a, d ^ b);
        self.state = [a ^ d1, b ^ c1, c1 ^ (b << 17), d1.rotate_left(45)];
        result
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0);
        let wide = u128::from(self.bits()) * u128::from(n);
        u64::try_from(wide >> 64).expect("the product's upper half is below n")
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// An index into `len` things.
    pub fn index(&mut self, len: usize) -> usize {
        to_usize(self.below(to_u64(len)))
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of `choices`.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// An index, each as likely as its weight says; the weights do not sum to 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return index;
            }
            left -= weight;
        }
        unreachable!("what was drawn is below the sum")
    }

    /// A number from 1 to `max`, small ones as likely as large ones: the size first, then the number.
    pub fn skewed(&mut self, max: u64) -> u64 {
        assert!(max > 0);
        let bits = self.below(u64::from(max.ilog2()) + 1);
        (1 + self.below(1 << (bits + 1))).min(max)
    }

    /// Weights for a swarm: each kind of event is left out of this history with `absent` in a
    /// thousand, and is otherwise anything from rare to dominant. At least one is kept.
    pub fn swarm<const N: usize>(&mut self, absent: u64) -> [u64; N] {
        let mut weights = [0; N];
        for weight in &mut weights {
            if !self.chance(absent) {
                *weight = self.skewed(64);
            }
        }
        if weights.iter().all(|weight| *weight == 0) {
            weights[self.index(N)] = 1;
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn the_generator_is_xoshiro256_plus_plus() {
        // First outputs of the reference program for the state 1, 2, 3, 4.
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
        ];
        assert_eq!([(); 4].map(|()| random.bits()), expected);
    }

    #[test]
    fn every_choice_is_made_about_as_often_as_its_weight_says() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 3];
        for _ in 0..9000 {
            counts[random.weighted(&[1, 0, 2])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((2700..3300).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn bounds_are_reached_and_never_passed() {
        let mut random = Random::new(2);
        let between: Vec<_> = (0..200).map(|_| random.between(3, 5)).collect();
        let skewed: Vec<_> = (0..2000).map(|_| random.skewed(33)).collect();
        for n in 3..=5 {
            assert!(between.contains(&n));
        }
        assert!(between.iter().all(|n| (3..=5).contains(n)));
        for n in 1..=33 {
            assert!(skewed.contains(&n), "{n}");
        }
        assert!(skewed.iter().all(|n| (1..=33).contains(n)));
    }
}
