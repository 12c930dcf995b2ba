//! Repeatable random numbers: the splitmix64 generator.

/// A generator that gives the same numbers for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`. Slightly uneven for huge limits, which does not matter here.
    pub fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "there is something to choose from");
        let limit = crate::units::to_u64(limit);
        crate::units::to_usize(self.next() % limit)
    }
}
