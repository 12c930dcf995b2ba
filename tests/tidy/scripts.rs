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
