//! Label, check, dump and clear on files: what each refuses, and that a refusal changes nothing.
//!
//! The files lie under the build's own folder: it is on a disk, and direct I/O needs one.

use super::{call, text};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Fields of the superblock, as `docs/format.md` has them.
const CRC_AT: usize = 12;
const EPOCH_AT: usize = 156;
const PHASE_AT: usize = 172;
const CLEAN_AT: usize = 175;

/// Two members and a journal.
struct Disks {
    folder: tempfile::TempDir,
}

impl Disks {
    fn new() -> Disks {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let disks = Disks { folder };
        for name in ["member0", "member1", "journal"] {
            File::create(disks.path(name))
                .and_then(|file| file.set_len(32 << 20))
                .expect("created");
        }
        disks.write_config("");
        disks
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `more` ends the file.
    fn write_config(&self, more: &str) {
        let text = "name = \"offline\"\ndata.members = [\"member0\", \"member1\"]\njournal.device = \"journal\"\n";
        fs::write(self.path("vol.toml"), format!("{text}{more}")).expect("written");
    }

    fn call(&self, arguments: &[&str]) -> super::Outcome {
        let config = self.path("vol.toml");
        let all: Vec<&str> = arguments.iter().copied().chain([text(&config)]).collect();
        call(&all)
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let outcome = self.call(arguments);
        assert_eq!(
            (outcome.code, outcome.stderr.as_str()),
            (0, ""),
            "{arguments:?}"
        );
        outcome.stdout
    }

    /// It is refused with exit code 3 and changes nothing. Returns the sentence.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.contents();
        let outcome = self.call(arguments);
        let sentence = outcome.failure(3).to_owned();
        assert!(self.contents() == before, "{arguments:?} changed something");
        sentence
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        ["member0", "member1", "journal"]
            .map(|name| fs::read(self.path(name)).unwrap_or_default())
            .into()
    }

    fn resize(&self, name: &str, size: u64) {
        File::options()
            .write(true)
            .open(self.path(name))
            .and_then(|file| file.set_len(size))
            .expect("resized");
    }

    /// Changes a superblock as another program of the same format would: with the checksum that belongs to it.
    fn change_superblock(&self, name: &str, place: usize, with: impl Fn(&mut [u8])) {
        let mut bytes = fs::read(self.path(name)).expect("read");
        let superblock = &mut bytes[place..place + 4096];
        assert_eq!(superblock[..8], *b"ujournal", "{name}");
        with(superblock);
        superblock[CRC_AT..CRC_AT + 4].fill(0);
        let checksum = crc32c::crc32c(superblock);
        superblock[CRC_AT..CRC_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        fs::write(self.path(name), bytes).expect("written");
    }

    fn change(&self, name: &str, at: u64, with: impl Fn(u8) -> u8) {
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(self.path(name))
            .expect("opened");
        let mut byte = [0];
        file.seek(SeekFrom::Start(at))
            .and_then(|_| file.read_exact(&mut byte))
            .expect("read");
        file.seek(SeekFrom::Start(at))
            .and_then(|_| file.write_all(&[with(byte[0])]))
            .expect("written");
    }
}

#[track_caller]
fn assert_says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(sentence.contains(word), "{word}: {sentence}");
    }
}

#[test]
fn a_new_array_is_labelled_checked_dumped_and_cleared() {
    let disks = Disks::new();
    let labelled = disks.done(&["label"]);
    assert_says(
        &labelled,
        &[
            "offline: labelled as ",
            "a device of 59",
            " MiB with a journal of 29.9 MiB\n",
        ],
    );
    assert_says(
        &disks.done(&["check"]),
        &[
            "offline: would start: it was stopped cleanly",
            "member 0",
            "member 1",
            "journal",
        ],
    );
    let check: serde_json::Value =
        serde_json::from_str(&disks.done(&["check", "--json"])).expect("JSON");
    assert_eq!(
        (&check["array"], &check["verdict"]),
        (&"offline".into(), &"serve".into())
    );
    assert_eq!(check["parts"].as_array().expect("a list").len(), 3);

    for name in ["member0", "member1", "journal"] {
        let path = disks.path(name);
        let dump = call(&["dump", text(&path)]);
        assert_eq!((dump.code, dump.stderr.as_str()), (0, ""));
        assert_says(
            &dump.stdout,
            &["first superblock", "second superblock", "offline"],
        );
        let dump = call(&["dump", "--json", text(&path)]);
        let dump: serde_json::Value = serde_json::from_str(&dump.stdout).expect("JSON");
        assert_eq!(dump["superblocks"].as_array().expect("a list").len(), 2);
    }

    assert_eq!(disks.done(&["clear"]), "offline: labels taken off\n");
    assert_says(
        &disks.refused(&["clear"]),
        &[
            "member0: carries no ujournal label, expected a part of array offline; check data.members",
        ],
    );
    assert_eq!(
        call(&["dump", text(&disks.path("journal"))]).failure(3),
        format!(
            "{}: no ujournal superblock",
            disks.path("journal").display()
        )
    );
    disks.done(&["label"]);
}

#[test]
fn label_refuses_what_carries_something_until_it_is_forced() {
    let disks = Disks::new();
    disks.done(&["label"]);
    assert_says(
        &disks.refused(&["label"]),
        &[
            "member0: is member 0 of the ujournal array offline",
            "to use it: ujournal start ",
            "vol.toml; label --force",
        ],
    );
    disks.done(&["label", "--force"]);
    disks.done(&["clear"]);

    // The magic of ext4, and the end of a GPT.
    disks.change("member1", 1080, |_| 0x53);
    disks.change("member1", 1081, |_| 0xef);
    assert_says(
        &disks.refused(&["label"]),
        &["member1: carries ", "ext", "label --force"],
    );
    disks.done(&["label", "--force"]);
    // Not a trace is left of it, under the label or after it.
    disks.done(&["clear"]);
    disks.done(&["label"]);
}

/// C-LIF-7: what is overwritten is gone before anything else of the part is touched.
#[test]
fn a_forced_label_that_is_cut_while_it_fills_the_journal_leaves_no_array_to_start() {
    let disks = Disks::new();
    for member in ["member0", "member1"] {
        disks.resize(member, 8 << 20);
    }
    disks.resize("journal", 128 << 20);
    disks.done(&["label"]);
    assert_says(&disks.done(&["check"]), &["would start"]);
    // The kernel ends it when it writes behind this size, which it does in the journal alone.
    let ended = std::process::Command::new("prlimit")
        .arg("--fsize=67108864")
        .arg(super::ujournal().get_program())
        .args(["label", "--force"])
        .arg(disks.path("vol.toml"))
        .output()
        .expect("prlimit runs");
    assert!(!ended.status.success(), "{ended:?}");
    let checked = disks.call(&["check"]);
    assert_eq!(checked.code, 3, "{}", checked.stdout);
    assert_says(&checked.stdout, &["would be refused", "member0"]);
    disks.done(&["label", "--force"]);
}

#[test]
fn a_label_that_was_interrupted_is_refused_by_start_and_done_again_by_label() {
    let disks = Disks::new();
    disks.done(&["label"]);
    let ready = disks.contents();
    // What a label leaves that is cut off in its last step: one part says ready, the others do not.
    for name in ["member1", "journal"] {
        for place in [4096, (32 << 20) - 4096] {
            disks.change_superblock(name, place, |bytes| bytes[PHASE_AT] = 0);
        }
    }
    assert_says(
        &disks.refused(&["clear"]),
        &["member1: labelling this array was interrupted; run label again"],
    );
    let check = disks.call(&["check"]);
    assert_eq!((check.code, check.stderr.as_str()), (3, ""));
    assert_says(&check.stdout, &["would be refused", "run label again"]);
    // Under another name it is a foreign array's.
    let config = fs::read_to_string(disks.path("vol.toml")).expect("read");
    fs::write(disks.path("vol.toml"), config.replace("offline", "other")).expect("written");
    assert_says(
        &disks.refused(&["label"]),
        &["array offline", "label --force overwrites it"],
    );
    fs::write(disks.path("vol.toml"), config).expect("written");
    disks.done(&["label"]);
    disks.done(&["check"]);

    // An array that is whole is not an interrupted label, nor is one that has been started.
    for (name, bytes) in ["member0", "member1", "journal"].iter().zip(&ready) {
        fs::write(disks.path(name), bytes).expect("written");
    }
    disks.refused(&["label"]);
    for place in [4096, (32 << 20) - 4096] {
        disks.change_superblock("member0", place, |bytes| bytes[EPOCH_AT] = 1);
        disks.change_superblock("member1", place, |bytes| bytes[PHASE_AT] = 0);
    }
    assert_says(
        &disks.refused(&["label"]),
        &["member0: is member 0 of the ujournal array offline"],
    );
}

/// What is on the disks, by their names.
fn carried(disks: &Disks) -> [bool; 3] {
    ["member0", "member1", "journal"].map(|name| call(&["dump", text(&disks.path(name))]).code == 0)
}

#[test]
fn clear_force_takes_off_damaged_labels_too() {
    let disks = Disks::new();
    disks.done(&["label"]);
    disks.change("member1", 4096 + 200, |byte| !byte);
    disks.change("member1", (32 << 20) - 4096 + 200, |byte| !byte);
    assert_says(
        &disks.refused(&["clear"]),
        &["member1: superblock checksum"],
    );
    disks.done(&["clear", "--force"]);
    for name in ["member0", "member1", "journal"] {
        let dump = call(&["dump", text(&disks.path(name))]);
        assert_says(dump.failure(3), &["no ujournal superblock"]);
    }
    disks.done(&["label"]);
}

#[test]
fn clear_force_clears_what_is_there_of_its_array_and_touches_nothing_else() {
    let other = Disks::new();
    let config = fs::read_to_string(other.path("vol.toml")).expect("read");
    fs::write(other.path("vol.toml"), config.replace("offline", "other")).expect("written");
    other.done(&["label"]);
    let of_another_array = fs::read(other.path("member1")).expect("read");

    // Gone; something where the superblocks would be that is none, as a filesystem has it; another array's;
    // and what is too small for anything.
    for (stranger, words) in [
        (None, "member1: there is no such disk or file"),
        (
            Some(vec![0xa5; 32 << 20]),
            "member1: carries no ujournal label",
        ),
        (
            Some(of_another_array),
            "member1: is member 1 of the ujournal array other (",
        ),
        (Some(vec![0; 512]), "member1: carries no ujournal label"),
    ] {
        let disks = Disks::new();
        disks.done(&["label"]);
        match &stranger {
            None => fs::remove_file(disks.path("member1")).expect("removed"),
            Some(bytes) => fs::write(disks.path("member1"), bytes).expect("written"),
        }
        disks.refused(&["clear"]);
        assert!(carried(&disks)[0]);
        let cleared = disks.call(&["clear", "--force"]);
        assert_says(
            cleared.failure(1),
            &[
                "offline: labels taken off 2 of 3 parts; not off the others: ",
                words,
            ],
        );
        let [member, _, journal] = carried(&disks);
        assert!(!member && !journal, "{words}: they still carry labels");
        let left = fs::read(disks.path("member1")).ok();
        assert!(left == stranger, "{words}: it was changed");
        // Nothing is left to do: nothing is done.
        assert_says(
            &disks.refused(&["clear", "--force"]),
            &["member0: carries no ujournal label", words],
        );
    }
}

#[test]
fn clear_force_does_not_take_two_arrays_of_one_name_for_one() {
    let (disks, namesake) = (Disks::new(), Disks::new());
    disks.done(&["label"]);
    namesake.done(&["label"]);
    fs::copy(namesake.path("member1"), disks.path("member1")).expect("copied");
    assert_says(
        &disks.refused(&["clear", "--force"]),
        &[
            "member0 and ",
            "member1 are of two arrays that are both called offline",
        ],
    );
}

#[test]
fn clear_refuses_a_dirty_array_until_it_is_forced() {
    let disks = Disks::new();
    disks.done(&["label"]);
    for place in [4096, (32 << 20) - 4096] {
        disks.change_superblock("journal", place, |bytes| bytes[CLEAN_AT] = 0);
    }
    assert_says(
        &disks.refused(&["clear"]),
        &[
            "array offline was not stopped cleanly",
            "start it and stop it",
            "clear --force",
        ],
    );
    assert_says(
        &disks.refused(&["label"]),
        &["member0: is member 0 of the ujournal array offline"],
    );
    disks.done(&["clear", "--force"]);
}

#[test]
fn the_least_journal_that_is_named_is_one_that_label_takes() {
    let disks = Disks::new();
    // 8 x (512 + 16) KiB + 64 x 4 KiB, and 1 MiB and 4 KiB at each end.
    let least: u64 = (8 * (512 + 16) + 64 * 4 + 2 * 1028) << 10;
    disks.write_config("journal.size = \"6535KiB\"\n");
    assert_says(
        disks.call(&["label"]).failure(2),
        &["journal.size: expected a size from 6536KiB (the minimum with device.max_io"],
    );
    disks.write_config("journal.size = \"6536KiB\"\n");
    disks.done(&["label"]);
    disks.done(&["clear"]);

    disks.write_config("");
    disks.resize("journal", least - 4096);
    assert_says(
        &disks.refused(&["label"]),
        &[
            "journal: has ",
            "6532KiB",
            "for requests of 512KiB",
            "at least 6536KiB",
            "lower device.max_io",
        ],
    );
    disks.resize("journal", least);
    disks.done(&["label"]);
    disks.write_config("journal.size = \"6544KiB\"\n");
    disks.refused(&["label", "--force"]);
}

#[test]
fn a_part_that_cannot_be_one_is_refused_by_name() {
    let disks = Disks::new();
    disks.done(&["label"]);
    std::os::unix::fs::symlink("circle", disks.path("circle")).expect("linked");
    let config = fs::read_to_string(disks.path("vol.toml")).expect("read");
    for (stranger, words) in [
        (
            "gone",
            "there is no such disk or file; check the path and whether the disk is connected",
        ),
        (
            ".",
            "is a directory, expected a block device or a regular file",
        ),
        (
            "/dev/null",
            "is a character device, expected a block device or a regular file",
        ),
        ("circle", "its symbolic links lead in a circle"),
        ("/proc/self/status", "refuses direct I/O (O_DIRECT)"),
    ] {
        let changed = config.replace("\"member1\"", &format!("\"{stranger}\""));
        fs::write(disks.path("vol.toml"), changed).expect("written");
        for command in [&["label", "--force"][..], &["clear"], &["clear", "--force"]] {
            // What is merely gone keeps `clear --force` from nothing: see its own tests.
            if stranger != "gone" || command != ["clear", "--force"] {
                assert_says(&disks.refused(command), &[words]);
            }
        }
        let check = disks.call(&["check"]);
        assert_eq!((check.code, check.stderr.as_str()), (3, ""));
        assert_says(&check.stdout, &[words]);
        let path = disks.path(stranger);
        assert_says(call(&["dump", text(&path)]).failure(3), &[words]);
    }
}

#[test]
fn what_is_missing_too_small_or_held_is_refused() {
    let disks = Disks::new();
    disks.done(&["label"]);

    let journal = fs::read(disks.path("journal")).expect("read");
    fs::remove_file(disks.path("journal")).expect("removed");
    for command in ["label", "clear"] {
        assert_says(&disks.refused(&[command]), &["journal"]);
    }
    let check = disks.call(&["check"]);
    assert_eq!((check.code, check.stderr.as_str()), (3, ""));
    assert_says(&check.stdout, &["offline: would be refused: ", "journal"]);
    fs::write(disks.path("journal"), &journal).expect("written");
    disks.done(&["check"]);

    File::options()
        .write(true)
        .open(disks.path("member0"))
        .and_then(|file| file.set_len((32 << 20) - 4096))
        .expect("cut");
    let check = disks.call(&["check"]);
    assert_eq!(check.code, 3, "{}", check.stdout);
    assert_says(&check.stdout, &["member0"]);
    File::options()
        .write(true)
        .open(disks.path("member0"))
        .and_then(|file| file.set_len(1 << 20))
        .expect("cut");
    assert_says(&disks.refused(&["label", "--force"]), &["needs at least"]);

    let other = Disks::new();
    let held = File::open(other.path("member1")).expect("opened");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let pid = format!("process {}", std::process::id());
    assert_says(&other.refused(&["label"]), &["member1", "in use", &pid]);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let (one, other) = (Disks::new(), Disks::new());
    one.done(&["label"]);
    other.done(&["label"]);
    fs::copy(other.path("journal"), one.path("journal")).expect("copied");
    let check = one.call(&["check"]);
    assert_eq!(check.code, 3, "{}", check.stdout);
    assert_says(
        &check.stdout,
        &[
            "member0 belongs to array offline (",
            "journal to array offline (",
            "vol.toml cannot mean both: correct journal.device",
        ],
    );
    fs::copy(one.path("member0"), one.path("member1")).expect("copied");
    let check = one.call(&["check"]);
    assert_eq!(check.code, 3, "{}", check.stdout);
    // Another name, another array: which of them the file means.
    let foreign = Disks::new();
    let config = fs::read_to_string(foreign.path("vol.toml")).expect("read");
    fs::write(
        foreign.path("vol.toml"),
        config.replace("offline", "foreign"),
    )
    .expect("written");
    foreign.done(&["label"]);
    fs::copy(foreign.path("member1"), one.path("member1")).expect("copied");
    let check = one.call(&["check"]);
    assert_eq!(check.code, 3, "{}", check.stdout);
    assert_says(
        &check.stdout,
        &[
            "member1 to array foreign (",
            "vol.toml means offline: correct data.members",
        ],
    );
    // Another name for the same file.
    fs::remove_file(one.path("member1")).expect("removed");
    fs::hard_link(one.path("member0"), one.path("member1")).expect("linked");
    assert_says(&one.refused(&["label", "--force"]), &["member0", "member1"]);
}

#[test]
fn a_key_that_was_fixed_at_label_time_is_named_with_both_values() {
    let disks = Disks::new();
    disks.done(&["label"]);
    disks.write_config("data.chunk = \"128KiB\"\n");
    assert_says(
        &disks.refused(&["clear"]),
        &[
            "vol.toml: data.chunk is 128KiB, labelled with 64KiB; it is fixed at label time, set it back",
        ],
    );
    disks.write_config("device.block_size = 4096\n");
    assert_says(
        &disks.refused(&["clear"]),
        &["device.block_size", "4096", "512", "fixed at label time"],
    );
    disks.write_config("journal.size = \"16MiB\"\n");
    assert_says(
        &disks.refused(&["clear"]),
        &["journal.size is 16MiB, labelled with 32MiB;"],
    );
    // The order of members is not fixed by the file.
    let turned = "name = \"offline\"\ndata.members = [\"member1\", \"member0\"]\njournal.device = \"journal\"\n";
    fs::write(disks.path("vol.toml"), turned).expect("written");
    assert_says(&disks.done(&["check"]), &["would start"]);
}

#[test]
fn a_part_without_any_superblock_is_refused() {
    let disks = Disks::new();
    disks.done(&["label"]);
    fs::write(disks.path("member1"), vec![0xa5; 32 << 20]).expect("written");
    let check = disks.call(&["check"]);
    assert_eq!(check.code, 3, "{}", check.stdout);
    assert_says(
        &check.stdout,
        &[
            "member1: carries no ujournal label, expected a part of array offline; check data.members",
        ],
    );
}

#[test]
fn members_or_a_journal_that_the_file_does_not_list_are_named() {
    let disks = Disks::new();
    disks.done(&["label"]);
    for (text, sentence) in [
        (
            "data.members = [\"member0\"]\njournal.device = \"journal\"\n",
            "vol.toml lists 1 member, array offline has 2: member 1 is not among them",
        ),
        (
            "data.members = [\"member0\", \"member1\"]\njournal.size = \"16MiB\"\n",
            "vol.toml names no journal.device, but offline was labelled with one",
        ),
    ] {
        fs::write(
            disks.path("vol.toml"),
            format!("name = \"offline\"\n{text}"),
        )
        .expect("written");
        assert_says(&disks.refused(&["clear"]), &[sentence]);
        let check = disks.call(&["check"]);
        assert_eq!(check.code, 3);
        assert_says(&check.stdout, &[sentence]);
    }
}

#[test]
fn a_member_that_is_too_small_for_the_journal_on_it_names_the_key() {
    let disks = Disks::new();
    let attached =
        "name = \"offline\"\ndata.members = [\"member0\", \"member1\"]\njournal.size = \"64MiB\"\n";
    fs::write(disks.path("vol.toml"), attached).expect("written");
    assert_says(
        &disks.refused(&["label"]),
        &[
            "member0: has 32MiB, each member of this array needs at least ",
            " because of journal.size, which is 64MiB",
        ],
    );
}

#[test]
fn a_label_of_which_one_copy_is_lost_is_told_by_check_and_starts_all_the_same() {
    for (name, place, words) in [
        (
            "member1",
            0,
            "member1: first label unreadable, the second is used; start rewrites it",
        ),
        (
            "journal",
            (32 << 20) - 4096,
            "journal: second label unreadable, the first is used; start rewrites it",
        ),
    ] {
        let disks = Disks::new();
        disks.done(&["label"]);
        assert!(!disks.done(&["check"]).contains("unreadable"));
        let mut bytes = fs::read(disks.path(name)).expect("read");
        let end = bytes.len().min(place + (1 << 20));
        bytes[place..end].fill(0);
        fs::write(disks.path(name), bytes).expect("written");
        assert_says(
            &disks.done(&["check"]),
            &["would start", "note      ", words],
        );
        let json: serde_json::Value =
            serde_json::from_str(&disks.done(&["check", "--json"])).expect("JSON");
        let findings = json["findings"].as_array().expect("a list");
        assert!(
            findings
                .iter()
                .any(|finding| finding.as_str().is_some_and(|text| text.contains(words))),
            "{json}"
        );
    }
}

/// C-REC-12.
#[test]
fn a_lost_anchor_is_told_by_check() {
    for place in [1 << 20, (31 << 20) - 4096] {
        let disks = Disks::new();
        disks.done(&["label"]);
        disks.change("journal", place, |byte| byte ^ 1);
        let words =
            "journal: one of the two anchors of the journal is unreadable, the other is used";
        assert_says(&disks.done(&["check"]), &["would start", words]);
    }
}

#[test]
fn a_member_file_with_holes_is_labelled_with_a_note() {
    let disks = Disks::new();
    let labelled = disks.done(&["label"]);
    assert_says(
        &labelled,
        &[
            "note: ",
            "member0: is a sparse file, ",
            "fallocate -l 33554432 ",
        ],
    );
    assert_eq!(
        labelled.matches("note: ").count(),
        2,
        "the journal is filled: {labelled}"
    );
    disks.done(&["clear"]);
    for name in ["member0", "member1"] {
        fs::write(disks.path(name), vec![0; 32 << 20]).expect("written");
    }
    assert!(!disks.done(&["label"]).contains("note: "));
}

#[test]
fn dump_of_a_configuration_says_what_dump_takes() {
    let disks = Disks::new();
    let config = disks.path("vol.toml");
    assert_says(
        call(&["dump", text(&config)]).failure(3),
        &[
            "vol.toml: dump takes a disk, or a file that is a part of an array",
            "check takes the configuration",
        ],
    );
    // As everywhere else, JSON for people and programs.
    disks.done(&["label"]);
    let dump = call(&["dump", "--json", text(&disks.path("journal"))]);
    assert!(
        dump.stdout.starts_with("{\n  \"path\": "),
        "{}",
        dump.stdout
    );
}

/// A label that cannot be read is still one: only `--force` may write over it.
#[test]
fn a_part_whose_both_superblocks_are_damaged_is_refused() {
    let (first, second) = (4096, (32 << 20) - 4096);
    // Both damaged; or one damaged and the other gone, whichever.
    for (damaged, gone) in [
        (&[first, second][..], None),
        (&[first], Some(second)),
        (&[second], Some(first)),
    ] {
        let disks = Disks::new();
        disks.done(&["label"]);
        for place in damaged {
            disks.change("member1", place + 200, |byte| !byte);
        }
        if let Some(place) = gone {
            for at in 0..176 {
                disks.change("member1", place + at, |_| 0);
            }
        }
        let check = disks.call(&["check"]);
        assert_eq!(check.code, 3, "{}", check.stdout);
        assert_says(&check.stdout, &["member1: superblock checksum"]);
        // The others are whole: each is asked alone, or they would be what is refused.
        for name in ["member0", "journal"] {
            fs::write(disks.path(name), vec![0; 32 << 20]).expect("written");
        }
        assert_says(
            &disks.refused(&["label"]),
            &[
                "member1: carries a ujournal array whose label is damaged (superblock checksum",
                "label --force",
            ],
        );
        disks.done(&["label", "--force"]);
    }

    // A field that no version writes.
    let disks = Disks::new();
    disks.done(&["label"]);
    for name in ["member0", "journal"] {
        fs::write(disks.path(name), vec![0; 32 << 20]).expect("written");
    }
    for place in [4096, (32 << 20) - 4096] {
        disks.change_superblock("member1", place, |bytes| bytes[PHASE_AT] = 9);
    }
    assert_says(&disks.refused(&["label"]), &["`phase`", "label --force"]);
}

/// Every target config, with files in the place of its disks and a journal that a test can afford.
#[test]
fn every_target_config_can_be_labelled() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target-configs");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("target-configs") {
        let file = entry.expect("an entry").path();
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let mut config: toml::Table = fs::read_to_string(&file)
            .expect("read")
            .parse()
            .expect("TOML");
        let make = |name: String| {
            File::create(place.path().join(&name))
                .and_then(|made| made.set_len(64 << 20))
                .expect("created");
            toml::Value::String(name)
        };
        let members = config["data"]["members"].as_array_mut().expect("a list");
        for (index, member) in members.iter_mut().enumerate() {
            *member = make(format!("member{index}"));
        }
        let journal = config["journal"].as_table_mut().expect("a section");
        if journal.contains_key("device") {
            journal.insert("device".to_owned(), make("journal".to_owned()));
        }
        if journal.contains_key("size") {
            journal.insert("size".to_owned(), toml::Value::String("32MiB".to_owned()));
        }
        let changed = place.path().join("changed.toml");
        fs::write(&changed, config.to_string()).expect("written");
        for command in ["label", "check", "clear"] {
            let outcome = call(&[command, text(&changed)]);
            assert_eq!(
                (outcome.code, outcome.stderr.as_str()),
                (0, ""),
                "{command} {}",
                file.display()
            );
        }
        count += 1;
    }
    assert!(count >= 10, "{count}");
}
