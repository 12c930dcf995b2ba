//! What is wrong with a configuration is told before anything else, by every command that reads one.

use super::{call, text, try_out};
use std::fs;

/// Commands that take a configuration.
const READERS: [&str; 4] = ["label", "start", "check", "clear"];

#[test]
fn a_wrong_configuration_is_exit_code_2_with_file_line_key_expected_and_found() {
    let (folder, config) = try_out();
    let good = fs::read_to_string(&config).expect("read");
    let name = text(&config);
    for (from, to, sentence) in [
        (
            "name = \"vol0-cli-test\"",
            "",
            ": name is missing: expected a name of 1 to 32 characters a-z, 0-9, _ and -, \
          the first a letter or a digit",
        ),
        (
            "members =",
            "disks =",
            ", line 3: unknown key data.disks: [data] has members, chunk",
        ),
        (
            "device =",
            "devise =",
            ", line 5: unknown key journal.devise: did you mean journal.device?",
        ),
        (
            "[journal]",
            "chunk = \"64KB\"\n[journal]",
            ", line 4: data.chunk: expected a power of two from 4KiB to 1MiB, \
          written with B, KiB, MiB, GiB or TiB, found \"64KB\"",
        ),
        (
            "device = \"journal\"",
            "size = \"1MiB\"",
            ", line 5: journal.size: expected a size from 4736KiB (the minimum \
          with device.max_io = \"512KiB\") to 16TiB, found \"1MiB\"",
        ),
        (
            "[journal]",
            "[journal",
            ", line 4, column 9: not valid TOML: unclosed table, expected `]`",
        ),
        (
            "[journal]",
            "members = []\n[journal]",
            ", line 4, column 1: not valid TOML: duplicate key members",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        fs::write(&config, good.replace(from, to)).expect("written");
        for command in READERS {
            call(&[command, name]).assert_failed(2, &format!("{name}{sentence}"));
        }
    }
    let same = good.replace("\"member1\"", "\"./member0\"");
    fs::write(&config, same).expect("written");
    for command in READERS {
        call(&[command, name]).assert_failed(
            2,
            &format!(
                "{name}, line 3: data.members[1]: expected each disk or file once, found \"{}\", which is \
                 data.members[0] too",
                text(&folder.path().join("member0"))
            ),
        );
    }
}

#[test]
fn a_configuration_that_is_no_file_is_exit_code_2() {
    let folder = tempfile::tempdir().expect("a folder");
    for command in READERS {
        call(&[command, "vol0"]).assert_failed(
            2,
            "vol0: cannot read the configuration: no such file; expected the path of a configuration (vol0.toml?), not \
             an array's name",
        );
    }
    let gone = folder.path().join("gone.toml");
    for command in READERS {
        call(&[command, text(&gone)]).assert_failed(
            2,
            &format!(
                "{}: cannot read the configuration: No such file or directory (os error 2)",
                gone.display()
            ),
        );
        call(&[command, text(folder.path())]).assert_failed(
            2,
            &format!(
                "{}: expected a TOML text of at most 1MiB, found a folder",
                folder.path().display()
            ),
        );
    }
}

#[test]
fn every_target_config_gets_past_the_reading_of_it() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target-configs");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("target-configs") {
        let file = entry.expect("an entry").path();
        let check = call(&["check", text(&file)]);
        assert!(
            check.code != 2 && !check.stderr.contains(text(&file)),
            "{}",
            check.stderr
        );
        count += 1;
    }
    assert!(count >= 10, "{count}");
}
