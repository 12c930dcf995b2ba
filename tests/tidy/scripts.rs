//! Scripts and the manifest.

use crate::{Text, assert_none, at, files};

/// Files whose first line names a shell.
fn scripts(files: &[Text]) -> Vec<&Text> {
    let shell = |file: &&Text| {
        let first = file.content.lines().next().unwrap_or("");
        first.starts_with("#!") && first.trim_end().ends_with("sh")
    };
    files.iter().filter(shell).collect()
}

#[test]
fn a_shell_script_ends_at_its_first_failure() {
    let files = files();
    let scripts = scripts(&files);
    assert!(scripts.len() >= 5, "{} scripts", scripts.len());
    let mut complaints = Vec::new();
    for script in scripts {
        let strict = script
            .content
            .lines()
            .any(|line| line == "set -euo pipefail");
        let argued = script
            .content
            .lines()
            .any(|line| line.starts_with("# No `set -e`:"));
        if !strict && !argued {
            complaints.push(format!(
                "{}: no `set -euo pipefail`, and no reason why",
                script.path
            ));
        }
    }
    assert_none(&complaints);
}

#[test]
fn a_shell_script_says_what_it_is() {
    let files = files();
    let mut complaints = Vec::new();
    for script in scripts(&files) {
        let second = script.content.lines().nth(1).unwrap_or("");
        if second.strip_prefix("# ").is_none_or(|text| text.len() < 10) {
            complaints.push(format!(
                "{}: its second line does not say what it is",
                script.path
            ));
        }
        if !script.content.contains("xit codes:") && script.path != ".ci/run" {
            complaints.push(format!("{}: its exit codes are not told", script.path));
        }
        if !script.content.is_ascii() {
            complaints.push(format!("{}: a character beyond ASCII", script.path));
        }
    }
    assert_none(&complaints);
}

/// The `ci/NAME`s in a line, the path of nothing else.
fn ci_names(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    line.match_indices("ci/").filter_map(move |(begin, _)| {
        let before = line[..begin].chars().next_back();
        if before.is_some_and(|c| is_name(c) || c == '/') {
            return None;
        }
        let rest = &line[begin..];
        let end = rest[3..]
            .find(|c| !is_name(c))
            .map_or(rest.len(), |end| 3 + end);
        Some(rest[..end].trim_end_matches('.')).filter(|name| name.len() > 3)
    })
}

#[test]
fn every_script_that_is_named_is_there() {
    let files = files();
    let mut complaints = Vec::new();
    let mut seen = 0;
    // What stands in this file is made up.
    for file in files
        .iter()
        .filter(|file| file.path != "tests/tidy/scripts.rs")
    {
        for (number, line) in file.lines() {
            for name in ci_names(line) {
                seen += 1;
                if !files.iter().any(|file| file.path == name) {
                    complaints.push(format!("{}: there is no {name}", at(file, number)));
                }
            }
        }
    }
    assert!(seen > 30, "{seen} names were found");
    assert_none(&complaints);
}

#[test]
fn a_script_is_recognised_in_a_sentence() {
    let text = "see `ci/lab-kernel`, (ci/test) and ci/full.; not .ci/run, abc/ci/x or ci/.";
    let found: Vec<&str> = ci_names(text).collect();
    assert_eq!(found, ["ci/lab-kernel", "ci/test", "ci/full"]);
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let files = files();
    let manifest = files
        .iter()
        .find(|file| file.path == "Cargo.toml")
        .expect("the manifest");
    let mut section = "";
    let mut explained = false;
    let mut complaints = Vec::new();
    let mut count = 0;
    for (number, line) in manifest.lines() {
        if line.starts_with('[') {
            (section, explained) = (line, false);
        } else if line.is_empty() {
            explained = false;
        } else if line.starts_with('#') {
            explained = true;
        } else if section.contains("dependencies") {
            count += 1;
            if !explained {
                complaints.push(format!(
                    "{}: a dependency without a comment above it",
                    at(manifest, number)
                ));
            }
        }
    }
    assert!(count > 15, "{count} dependencies");
    assert_none(&complaints);
}

#[test]
fn every_package_comes_from_the_public_registry() {
    let files = files();
    let lock = files
        .iter()
        .find(|file| file.path == "Cargo.lock")
        .expect("the lock file");
    let mut complaints = Vec::new();
    let mut count = 0;
    for (number, line) in lock
        .lines()
        .filter(|(_, line)| line.starts_with("source = "))
    {
        count += 1;
        if line != "source = \"registry+https://github.com/rust-lang/crates.io-index\"" {
            complaints.push(format!("{}: {line}", at(lock, number)));
        }
    }
    assert!(count > 50, "{count} packages");
    assert_none(&complaints);
}
