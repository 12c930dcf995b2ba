//! Goal: whatever is wrong in a file is told in one exact sentence, and what is right is read right.
//! Method: a table of changes to one good file, each with the sentence that it must give.

use super::*;
use crate::outcome::sentence;

const GOOD: &str = r#"name = "vol0"

[data]
members = ["/dev/sdb", "/dev/sdc"]
chunk = "64KiB"

[journal]
device = "/dev/sdd"
size = "4GiB"

[device]
block_size = 512
queue_depth = 128
max_io = "512KiB"

[commit]
sync = "flush"
interval = "5s"

[replay]
round = "auto"
fill = 0.5
age = "30s"
idle = "200ms"
stall_timeout = "0"

[memory]
window = "auto"
extents = "1Mi"
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("vol0.toml"), text, Path::new("/etc/ujournal"))
}

/// The sentence that `text` gives.
#[track_caller]
fn refused(text: &str) -> String {
    match parse(text) {
        Ok(config) => panic!("was taken: {config:?}\n{text}"),
        Err(error) => {
            let sentence = error.to_string();
            assert!(!sentence.contains('\n'), "one sentence: {sentence}");
            sentence
        }
    }
}

/// `GOOD` with the line that begins with `key =` replaced.
#[track_caller]
fn changed(key: &str, line: &str) -> String {
    let (mut hits, mut text) = (0, String::new());
    for old in GOOD.lines() {
        if old.starts_with(&format!("{key} =")) {
            hits += 1;
            text.push_str(line);
        } else {
            text.push_str(old);
        }
        text.push('\n');
    }
    assert_eq!(hits, 1, "{key} stands once in the good file");
    text
}

/// `GOOD` with an attached journal.
fn attached_with(line: &str) -> String {
    changed("device", "").replace("size = \"4GiB\"", line)
}

#[test]
fn the_example_is_read_in_full() {
    let expected = Config {
        file: PathBuf::from("vol0.toml"),
        name: "vol0".parse().expect("a name"),
        data: Data {
            members: vec![PathBuf::from("/dev/sdb"), PathBuf::from("/dev/sdc")],
            chunk: 64 * KIB,
        },
        journal: Journal::Detached {
            device: PathBuf::from("/dev/sdd"),
            size: Some(4 << 30),
        },
        device: Device {
            block_size: BlockSize::Sector,
            queue_depth: 128,
            max_io: 512 * KIB,
        },
        commit: Commit {
            sync: SyncMode::Flush,
            interval: Duration::from_secs(5),
        },
        replay: Replay {
            round: Size::Auto,
            fill_permille: 500,
            age: Duration::from_secs(30),
            idle: Duration::from_millis(200),
            stall_timeout: None,
        },
        memory: Memory {
            window: Size::Auto,
            extents: MIB,
        },
    };
    assert_eq!(parse(GOOD).expect("good"), expected);

    // What may be left out has the values of the example.
    let short = "name = \"vol0\"\ndata.members = [\"/dev/sdb\", \"/dev/sdc\"]\n\
                 journal = { device = \"/dev/sdd\", size = \"4GiB\" }\n";
    assert_eq!(parse(short).expect("good"), expected);
}

#[test]
fn an_attached_journal_has_a_size_and_a_placement() {
    for (line, placement) in [
        ("size = \"1GiB\"", Placement::End),
        ("size = \"1GiB\"\nplacement = \"start\"", Placement::Start),
        ("size = \"1GiB\"\nplacement = \"middle\"", Placement::Middle),
        ("size = \"1GiB\"\nplacement = \"end\"", Placement::End),
    ] {
        let config = parse(&attached_with(line)).expect("good");
        assert_eq!(
            config.journal,
            Journal::Attached {
                size: 1 << 30,
                placement
            }
        );
        assert_eq!(config.journal_device(), None);
    }
}

#[test]
fn values_at_the_edges_are_taken() {
    for (key, line) in [
        ("name", r#"name = "0""#),
        ("name", r#"name = "a234567890123456789012345678-_12""#),
        ("chunk", r#"chunk = "4KiB""#),
        ("chunk", r#"chunk = "1MiB""#),
        ("size", r#"size = "6536KiB""#),
        ("size", r#"size = "16TiB""#),
        ("size", ""),
        ("block_size", "block_size = 4096"),
        ("queue_depth", "queue_depth = 1"),
        ("queue_depth", "queue_depth = 1024"),
        ("queue_depth", "queue_depth = 0x80"),
        ("max_io", r#"max_io = "4KiB""#),
        ("max_io", r#"max_io = "1MiB""#),
        ("max_io", r#"max_io = "124KiB""#),
        ("sync", r#"sync = "always""#),
        ("interval", r#"interval = "10ms""#),
        ("interval", r#"interval = "1day""#),
        ("round", r#"round = "1MiB""#),
        ("round", r#"round = "32GiB""#),
        ("fill", "fill = 0.05"),
        ("fill", "fill = 0.95"),
        ("age", r#"age = "10ms""#),
        ("idle", r#"idle = "1ms""#),
        ("stall_timeout", r#"stall_timeout = "1s""#),
        ("stall_timeout", r#"stall_timeout = "0s""#),
        ("window", r#"window = "16MiB""#),
        ("window", r#"window = "64GiB""#),
        ("extents", "extents = 4096"),
        ("extents", r#"extents = "256Mi""#),
        ("extents", r#"extents = "5000""#),
    ] {
        if let Err(error) = parse(&changed(key, line)) {
            panic!("{line}: {error}");
        }
    }
    let config = parse(&changed("fill", "fill = 0.3334")).expect("good");
    assert_eq!(config.replay.fill_permille, 334);
}

#[test]
fn every_wrong_value_gives_its_own_sentence() {
    const NAME: &str = "expected a name of 1 to 32 characters a-z, 0-9, _ and -, the first a letter or a digit, found";
    const UNITS: &str = "written with B, KiB, MiB, GiB or TiB";
    const JOURNAL: &str =
        "expected a size from 6536KiB (the minimum with device.max_io = \"512KiB\") to 16TiB";
    let journal_units = format!("{JOURNAL}, {UNITS}");
    let chunk_units = format!("expected a power of two from 4KiB to 1MiB, {UNITS}");
    let max_io_units = format!("expected a multiple of 4KiB from 4KiB to 1MiB, {UNITS}");
    const MAX_IO: &str = "expected a multiple of 4KiB from 4KiB to 1MiB";
    const CHUNK: &str = "expected a power of two from 4KiB to 1MiB";
    const MEMBERS: &str = "expected a list of 1 to 32 disks or files";
    const PATH: &str = "expected the path of a disk or file";
    const DEPTH: &str = "expected a number from 1 to 1024, without quotes";
    const BLOCK: &str = "expected 512 or 4096, without quotes";
    const FILL: &str = "expected a number from 0.05 to 0.95, without quotes";
    const LIKE: &str = "like \"5s\" or \"200ms\"";
    const INTERVAL: &str = "expected a time from 10ms to 1day";
    const IDLE: &str = "expected a time from 1ms to 1day";
    const STALL: &str = "expected a time from 1s to 1day, or \"0\" to wait for ever";
    const WINDOW: &str = "expected \"auto\" or a size from 16MiB (the minimum with device.max_io = \"512KiB\") to 64GiB";
    const ROUND: &str =
        "expected \"auto\", or at most half of memory.window and a size from 1MiB to 32GiB";
    const EXTENTS: &str =
        "expected a count from 4Ki to 256Mi, as a number or written with Ki or Mi";

    // key, the line in its place, line number, the key as named, the rest of the sentence
    let table: &[(&str, &str, usize, &str, String)] = &[
        ("name", "name = 5", 1, "name", format!("{NAME} the number 5")),
        ("name", "name = true", 1, "name", format!("{NAME} true")),
        ("name", "name = \"\"", 1, "name", format!("{NAME} \"\"")),
        ("name", "name = \"-vol\"", 1, "name", format!("{NAME} \"-vol\"")),
        ("name", "name = \"_vol\"", 1, "name", format!("{NAME} \"_vol\"")),
        ("name", "name = \"Vol\"", 1, "name", format!("{NAME} \"Vol\"")),
        ("name", "name = \"vol/0\"", 1, "name", format!("{NAME} \"vol/0\"")),
        ("name", "name = \"vol.0\"", 1, "name", format!("{NAME} \"vol.0\"")),
        ("name", "name = \"v\\u0000l\"", 1, "name", format!("{NAME} \"v\\0l\"")),
        ("name", "name = \"v\\nl\"", 1, "name", format!("{NAME} \"v\\nl\"")),
        ("name", "name = \"v\\u001b[2J\"", 1, "name", format!("{NAME} \"v\\u{{1b}}[2J\"")),
        ("name", "name = \"vél\"", 1, "name", format!("{NAME} \"vél\"")),
        (
            "name",
            "name = \"a23456789012345678901234567890123\"",
            1,
            "name",
            format!("{NAME} \"a23456789012345678901234567890123\""),
        ),
        (
            "name",
            "name = \"0123456789012345678901234567890123456789012345678901234567890\"",
            1,
            "name",
            format!("{NAME} \"012345678901234567890123456789012345678901234567890123456789...\""),
        ),
        ("members", "members = \"/dev/sdb\"", 4, "data.members", format!("{MEMBERS}, found \"/dev/sdb\"")),
        ("members", "members = []", 4, "data.members", format!("{MEMBERS}, found a list of 0")),
        ("members", "members = [1]", 4, "data.members[0]", format!("{PATH}, found the number 1")),
        ("members", "members = [\"/a\", \"\"]", 4, "data.members[1]", format!("{PATH}, found \"\"")),
        ("members", "members = [\"/a\\u0000\"]", 4, "data.members[0]", format!("{PATH}, found \"/a\\0\"")),
        ("members", "members = [[\"/a\"]]", 4, "data.members[0]", format!("{PATH}, found a list of 1")),
        (
            "members",
            "members = [\"/a\", \"/b\", \"/a\"]",
            4,
            "data.members[2]",
            "expected each disk or file once, found \"/a\", which is data.members[0] too".to_owned(),
        ),
        (
            "members",
            "members = [\"a\",\n \"./a\"]",
            5,
            "data.members[1]",
            "expected each disk or file once, found \"/etc/ujournal/a\", which is data.members[0] too".to_owned(),
        ),
        (
            "members",
            "members = [\"/dev/sdb\", \"/dev//sdb/\"]",
            4,
            "data.members[1]",
            "expected each disk or file once, found \"/dev/sdb\", which is data.members[0] too".to_owned(),
        ),
        ("chunk", "chunk = 65536", 5, "data.chunk", format!("{chunk_units}, found the number 65536")),
        ("chunk", "chunk = \"64\"", 5, "data.chunk", format!("{chunk_units}, found \"64\"")),
        ("chunk", "chunk = \"64KB\"", 5, "data.chunk", format!("{chunk_units}, found \"64KB\"")),
        ("chunk", "chunk = \"64k\"", 5, "data.chunk", format!("{chunk_units}, found \"64k\"")),
        ("chunk", "chunk = \"2KiB\"", 5, "data.chunk", format!("{CHUNK}, found \"2KiB\"")),
        ("chunk", "chunk = \"96KiB\"", 5, "data.chunk", format!("{CHUNK}, found \"96KiB\"")),
        ("chunk", "chunk = \"2MiB\"", 5, "data.chunk", format!("{CHUNK}, found \"2MiB\"")),
        (
            "device",
            "device = [\"/dev/sdd\", \"/dev/sde\"]",
            8,
            "journal.device",
            "expected one path: a journal over several disks is not in this version, found a list of 2".to_owned(),
        ),
        ("device", "device = 7", 8, "journal.device", format!("{PATH}, found the number 7")),
        (
            "device",
            "device = \"/dev/./sdc\"",
            8,
            "journal.device",
            "expected a disk or file that is no member, found \"/dev/sdc\", which is data.members[1]".to_owned(),
        ),
        ("size", "size = 4294967296", 9, "journal.size", format!("{journal_units}, found the number 4294967296")),
        ("size", "size = \"4GB\"", 9, "journal.size", format!("{journal_units}, found \"4GB\"")),
        ("size", "size = \"auto\"", 9, "journal.size", format!("{journal_units}, found \"auto\"")),
        ("size", "size = \"6535KiB\"", 9, "journal.size", format!("{JOURNAL}, found \"6535KiB\"")),
        ("size", "size = \"17TiB\"", 9, "journal.size", format!("{JOURNAL}, found \"17TiB\"")),
        (
            "size",
            "size = \"4GiB\"\nplacement = \"end\"",
            10,
            "journal.placement",
            "expected no placement where journal.device is given: it is for an attached journal, found \"end\""
                .to_owned(),
        ),
        ("block_size", "block_size = 1024", 12, "device.block_size", format!("{BLOCK}, found the number 1024")),
        ("block_size", "block_size = \"512\"", 12, "device.block_size", format!("{BLOCK}, found \"512\"")),
        ("block_size", "block_size = -512", 12, "device.block_size", format!("{BLOCK}, found the number -512")),
        ("queue_depth", "queue_depth = 0", 13, "device.queue_depth", format!("{DEPTH}, found the number 0")),
        ("queue_depth", "queue_depth = 1025", 13, "device.queue_depth", format!("{DEPTH}, found the number 1025")),
        ("queue_depth", "queue_depth = 1.5", 13, "device.queue_depth", format!("{DEPTH}, found the number 1.5")),
        (
            "queue_depth",
            "queue_depth = 99999999999999999999999",
            13,
            "device.queue_depth",
            format!("{DEPTH}, found the number 99999999999999999999999"),
        ),
        ("max_io", "max_io = 524288", 14, "device.max_io", format!("{max_io_units}, found the number 524288")),
        ("max_io", "max_io = \"2KiB\"", 14, "device.max_io", format!("{MAX_IO}, found \"2KiB\"")),
        ("max_io", "max_io = \"6KiB\"", 14, "device.max_io", format!("{MAX_IO}, found \"6KiB\"")),
        ("max_io", "max_io = \"2MiB\"", 14, "device.max_io", format!("{MAX_IO}, found \"2MiB\"")),
        ("sync", "sync = \"never\"", 17, "commit.sync", "expected \"flush\" or \"always\", found \"never\"".to_owned()),
        ("sync", "sync = true", 17, "commit.sync", "expected \"flush\" or \"always\", found true".to_owned()),
        ("interval", "interval = 5", 18, "commit.interval", format!("{INTERVAL}, {LIKE}, found the number 5")),
        ("interval", "interval = \"5\"", 18, "commit.interval", format!("{INTERVAL}, {LIKE}, found \"5\"")),
        ("interval", "interval = \"5 parsecs\"", 18, "commit.interval", format!("{INTERVAL}, {LIKE}, found \"5 parsecs\"")),
        ("interval", "interval = \"0\"", 18, "commit.interval", format!("{INTERVAL}, found \"0\"")),
        ("interval", "interval = \"9ms\"", 18, "commit.interval", format!("{INTERVAL}, found \"9ms\"")),
        ("interval", "interval = \"25h\"", 18, "commit.interval", format!("{INTERVAL}, found \"25h\"")),
        (
            "round",
            "round = 1048576",
            21,
            "replay.round",
            format!("{ROUND}, {UNITS}, found the number 1048576"),
        ),
        ("round", "round = \"automatic\"", 21, "replay.round", format!("{ROUND}, {UNITS}, found \"automatic\"")),
        ("round", "round = \"512KiB\"", 21, "replay.round", format!("{ROUND}, found \"512KiB\"")),
        ("round", "round = \"33GiB\"", 21, "replay.round", format!("{ROUND}, found \"33GiB\"")),
        ("fill", "fill = 0.049", 22, "replay.fill", format!("{FILL}, found the number 0.049")),
        ("fill", "fill = 0.951", 22, "replay.fill", format!("{FILL}, found the number 0.951")),
        ("fill", "fill = 0.9504", 22, "replay.fill", format!("{FILL}, found the number 0.9504")),
        ("fill", "fill = 1", 22, "replay.fill", format!("{FILL}, found the number 1")),
        ("fill", "fill = nan", 22, "replay.fill", format!("{FILL}, found the number nan")),
        ("fill", "fill = inf", 22, "replay.fill", format!("{FILL}, found the number inf")),
        ("fill", "fill = \"50%\"", 22, "replay.fill", format!("{FILL}, found \"50%\"")),
        ("age", "age = 30", 23, "replay.age", format!("{INTERVAL}, {LIKE}, found the number 30")),
        ("age", "age = \"1ms\"", 23, "replay.age", format!("{INTERVAL}, found \"1ms\"")),
        ("idle", "idle = \"0\"", 24, "replay.idle", format!("{IDLE}, found \"0\"")),
        ("idle", "idle = [\"1s\"]", 24, "replay.idle", format!("{IDLE}, {LIKE}, found a list of 1")),
        ("stall_timeout", "stall_timeout = 0", 25, "replay.stall_timeout", format!("{STALL}, {LIKE}, found the number 0")),
        ("stall_timeout", "stall_timeout = \"never\"", 25, "replay.stall_timeout", format!("{STALL}, {LIKE}, found \"never\"")),
        ("stall_timeout", "stall_timeout = \"1ms\"", 25, "replay.stall_timeout", format!("{STALL}, found \"1ms\"")),
        ("window", "window = 268435456", 28, "memory.window", format!("{WINDOW}, {UNITS}, found the number 268435456")),
        ("window", "window = \"256MB\"", 28, "memory.window", format!("{WINDOW}, {UNITS}, found \"256MB\"")),
        ("window", "window = \"15MiB\"", 28, "memory.window", format!("{WINDOW}, found \"15MiB\"")),
        ("window", "window = \"65GiB\"", 28, "memory.window", format!("{WINDOW}, found \"65GiB\"")),
        ("extents", "extents = 4095", 29, "memory.extents", format!("{EXTENTS}, found the number 4095")),
        ("extents", "extents = \"1MiB\"", 29, "memory.extents", format!("{EXTENTS}, found \"1MiB\"")),
        ("extents", "extents = \"257Mi\"", 29, "memory.extents", format!("{EXTENTS}, found \"257Mi\"")),
        ("extents", "extents = 1e6", 29, "memory.extents", format!("{EXTENTS}, found the number 1e6")),
        ("extents", "extents = 1979-05-27", 29, "memory.extents", format!("{EXTENTS}, found the date 1979-05-27")),
        ("extents", "extents = {}", 29, "memory.extents", format!("{EXTENTS}, found a section")),
    ];
    for (key, line, number, named, sentence) in table {
        assert_eq!(
            refused(&changed(key, line)),
            format!("vol0.toml, line {number}: {named}: {sentence}")
        );
    }
}

#[test]
fn what_an_attached_journal_needs_is_named_with_its_minimum() {
    assert_eq!(
        refused(&attached_with("")),
        "vol0.toml: journal.size is missing: expected the size of a journal on the members, \
         like \"4GiB\", or a disk of its own as journal.device"
    );
    // 8 x (512 + 16) KiB + 64 x 4 KiB + two chunks on each of two members.
    assert_eq!(
        refused(&attached_with("size = \"4735KiB\"")),
        "vol0.toml, line 9: journal.size: expected a size from 4736KiB (the minimum with \
         device.max_io = \"512KiB\") to 16TiB, found \"4735KiB\""
    );
    parse(&attached_with("size = \"4736KiB\"")).expect("the minimum itself");
    assert_eq!(
        refused(&attached_with("size = \"1GiB\"\nplacement = \"front\"")),
        "vol0.toml, line 10: journal.placement: expected \"start\" or \"middle\" or \"end\", found \"front\""
    );
}

#[test]
fn a_round_given_in_bytes_is_held_against_the_window() {
    let with_window =
        |round: &str| changed("round", round).replace("window = \"auto\"", "window = \"16MiB\"");
    parse(&with_window("round = \"8MiB\"")).expect("half of it");
    assert_eq!(
        refused(&with_window("round = \"9MiB\"")),
        "vol0.toml, line 21: replay.round: expected \"auto\", or at most half of memory.window and \
         a size from 1MiB to 8MiB, found \"9MiB\""
    );
}

#[test]
fn a_missing_key_is_named_with_what_it_should_say() {
    let name = format!("vol0.toml: name is missing: expected {}", ArrayName::RULE);
    let members = "vol0.toml: data.members is missing: expected a list of 1 to 32 disks or files";
    assert_eq!(refused(""), name);
    assert_eq!(refused(&changed("name", "")), name);
    assert_eq!(refused(&changed("members", "")), members);
    assert_eq!(refused("name = \"vol0\"\n"), members);
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    let top = "expected one of name, data, journal, device, commit, replay, memory";
    for (text, sentence) in [
        ("nmae = \"vol0\"\n".to_owned(), "line 1: unknown key nmae: did you mean name?".to_owned()),
        (format!("{GOOD}[swotch]\n"), format!("line 30: unknown key swotch: {top}")),
        (format!("{GOOD}[switch]\nfreeze = []\n"), "line 30: unknown key switch: this section is not in this version".to_owned()),
        (changed("members", "member = []"), "line 4: unknown key data.member: did you mean data.members?".to_owned()),
        (changed("members", "disks = []"), "line 4: unknown key data.disks: [data] has members, chunk".to_owned()),
        (changed("chunk", "Chunk = \"64KiB\""), "line 5: unknown key data.Chunk: did you mean data.chunk?".to_owned()),
        (changed("size", "sise = 1"), "line 9: unknown key journal.sise: did you mean journal.size?".to_owned()),
        (
            changed("queue_depth", "queue-depth = 1"),
            "line 13: unknown key device.queue-depth: did you mean device.queue_depth?".to_owned(),
        ),
        (changed("sync", "mode = 1"), "line 17: unknown key commit.mode: [commit] has sync, interval".to_owned()),
        (
            changed("age", "threads = 1"),
            "line 23: unknown key replay.threads: [replay] has round, fill, age, idle, stall_timeout".to_owned(),
        ),
        (changed("window", "windows = 1"), "line 28: unknown key memory.windows: did you mean memory.window?".to_owned()),
        (
            changed("window", "\"a\\nb\\u001b\" = 1"),
            "line 28: unknown key memory.a\\nb\\u{1b}: [memory] has window, extents".to_owned(),
        ),
        (changed("window", "\"\" = 1"), "line 28: unknown key memory.: [memory] has window, extents".to_owned()),
        // Of two the first in the file, though the other sorts before it.
        (changed("members", "zzz = 1\naaa = 1"), "line 4: unknown key data.zzz: [data] has members, chunk".to_owned()),
    ] {
        assert_eq!(refused(&text), format!("vol0.toml, {sentence}"));
    }
}

#[test]
fn a_key_in_place_of_a_section_is_refused() {
    for key in ["data", "journal", "device", "commit", "replay", "memory"] {
        assert_eq!(
            refused(&format!("name = \"vol0\"\n{key} = 1\n")),
            format!("vol0.toml, line 2: {key}: expected a section [{key}], found the number 1")
        );
    }
}

#[test]
fn a_file_that_is_not_toml_names_the_place() {
    for (text, start) in [
        ("name = \n", "vol0.toml, line 1, column 8: not valid TOML: "),
        (
            "name = \"a\"\nname = \"b\"\n",
            "vol0.toml, line 2, column 1: not valid TOML: duplicate key name",
        ),
        ("[data\n", "vol0.toml, line 1, column 6: not valid TOML: "),
        (
            "[data]\n[data]\n",
            "vol0.toml, line 2, column 2: not valid TOML: duplicate key data",
        ),
        (
            "name = \"a",
            "vol0.toml, line 1, column 10: not valid TOML: ",
        ),
        ("\0", "vol0.toml, line 1, column 2: not valid TOML: "),
    ] {
        let sentence = refused(text);
        assert!(sentence.starts_with(start), "{sentence}");
    }
}

#[test]
fn no_text_whatever_makes_it_panic() {
    proptest::proptest!(|(text in "\\PC{0,200}|(\\[|\\]|\\{|\\}|=|\"|'|\\.|,|#|\n|[a-z0-9]){0,80}")| {
        let _outcome = parse(&text);
    });
    // Every prefix of the good file, and every byte of it replaced by something that means something.
    for end in 0..GOOD.len() {
        let _outcome = parse(&GOOD[..end]);
        for other in ["\"", "[", "]", "=", "\n", "0", "{", "é"] {
            let _outcome = parse(&format!("{}{other}{}", &GOOD[..end], &GOOD[end + 1..]));
        }
    }
    assert!(parse(&"[".repeat(100_000)).is_err());
    assert!(parse(&format!("name = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn paths_are_taken_from_the_folder_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("vol0.toml");
    let text = changed(
        "members",
        "members = [\"disk0\", \"./sub/disk1\", \"/abs/disk2\", \"../disk3\"]",
    );
    std::fs::write(&file, text).expect("written");
    let config = Config::load(&file).expect("good");
    assert_eq!(
        config.data.members,
        [
            folder.path().join("disk0"),
            folder.path().join("sub/disk1"),
            PathBuf::from("/abs/disk2"),
            folder.path().join("../disk3"),
        ]
    );
}

#[test]
fn what_is_no_readable_text_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let load = |file: &Path| sentence(&Config::load(file).expect_err("refused"));

    let gone = folder.path().join("gone.toml");
    assert_eq!(
        load(&gone),
        format!(
            "{}: cannot read the configuration: No such file or directory (os error 2)",
            gone.display()
        )
    );
    assert_eq!(
        load(folder.path()),
        format!(
            "{}: expected a TOML text of at most 1MiB, found a folder",
            folder.path().display()
        )
    );
    let binary = folder.path().join("binary.toml");
    std::fs::write(&binary, b"name = \"\xff\"").expect("written");
    assert_eq!(
        load(&binary),
        format!(
            "{}: expected a TOML text of at most 1MiB, found bytes that are not UTF-8 at offset 8",
            binary.display()
        )
    );
    let long = folder.path().join("long.toml");
    std::fs::write(&long, "#".repeat(1 + (1 << 20))).expect("written");
    assert_eq!(
        load(&long),
        format!(
            "{}: expected a TOML text of at most 1MiB, found a longer file",
            long.display()
        )
    );
}

#[test]
fn every_target_config_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target-configs");
    let mut names = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("target-configs") {
        let file = entry.expect("an entry").path();
        assert_eq!(
            file.extension(),
            Some("toml".as_ref()),
            "{}",
            file.display()
        );
        let config = Config::load(&file).unwrap_or_else(|error| panic!("{error}"));
        assert!(
            names.insert(config.name.clone()),
            "{} is used twice",
            config.name
        );
    }
    assert!(names.len() >= 10, "{names:?}");
}

#[test]
fn the_target_config_with_all_keys_shows_the_defaults() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target-configs");
    let full = Config::load(&folder.join("raid0-two-disks-detached-journal.toml")).expect("good");
    assert_eq!(
        full,
        Config {
            file: full.file.clone(),
            ..parse(GOOD).expect("good")
        }
    );
}
