//! Disks that lie. If these were not caught, nothing else here would prove anything.

use ujournal::sim::trial::{Options, run};

/// Prints how many trials it takes to catch these disks, and what is found.
fn catch(options: &Options) {
    let caught = (0..50).find_map(|seed| run(seed, options).err());
    let failure = caught.unwrap_or_else(|| panic!("{} was not caught in 50 trials", options.name));
    println!("caught by seed {:#x}: {}", failure.seed, failure.what);
}

#[test]
fn disks_that_ignore_flushes_are_caught() {
    catch(&Options::NO_FLUSH);
}

#[test]
fn disks_that_ignore_durable_writes_are_caught() {
    catch(&Options::NO_SYNC);
}
