//! The source: layers, what the core may not use, where unsafe code and libublk may be.

use crate::{Text, assert_none, at, files};
use std::collections::BTreeMap;

/// Each may use itself and those before it.
const LAYERS: [&str; 5] = ["units", "disk", "journal", "engine", "ublk"];

/// The one layer that asks the machine about disks and their users: those above it get what it found.
const ASKS_THE_KERNEL: &str = "disk";

/// What stands beside the layers, and what each may use there.
const BESIDE: [(&str, &[&str]); 13] = [
    ("outcome", &[]),
    ("kernel", &["units"]),
    ("config", &["units", "outcome", "journal"]),
    ("control", &["units", "kernel", "outcome", "config"]),
    ("random", &["units"]),
    ("sim", &["units", "random", "disk", "journal", "engine"]),
    (
        "drive",
        &["units", "random", "disk", "journal", "engine", "ublk"],
    ),
    ("stamps", &["units", "random", "disk"]),
    (
        "serve",
        &[
            "units", "disk", "journal", "engine", "ublk", "outcome", "config", "control",
        ],
    ),
    (
        "array",
        &[
            "units", "kernel", "disk", "journal", "engine", "ublk", "outcome", "config", "control",
            "serve",
        ],
    ),
    (
        "daemon",
        &["units", "kernel", "outcome", "config", "control"],
    ),
    (
        "cli",
        &[
            "units", "disk", "journal", "engine", "ublk", "outcome", "config", "control", "array",
            "serve", "daemon",
        ],
    ),
    ("bin", &[]),
];

/// Files of the library.
fn sources() -> Vec<Text> {
    let mut sources = files();
    sources.retain(|file| file.path.starts_with("src/") && file.path.ends_with(".rs"));
    assert!(sources.len() > 50, "the sources were found");
    sources
}

/// The module that a file belongs to: `src/disk/lock.rs` is of `disk`.
fn module_of(path: &str) -> &str {
    let below = path.strip_prefix("src/").expect("a source");
    let end = below.find(['/', '.']).unwrap_or(below.len());
    &below[..end]
}

/// The lines of a file that are code: no comments, and nothing of its test module.
fn code(file: &Text) -> impl Iterator<Item = (usize, &str)> {
    let tests = file.path.ends_with("/tests.rs") || file.path.ends_with("_tests.rs");
    let lines = file.lines().take_while(move |(_, line)| {
        !tests && !line.starts_with("mod tests {") && !line.starts_with("mod model {")
    });
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The modules that a line names as `crate::module`.
fn uses(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").map(|(found, text)| {
        let rest = &line[found + text.len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        &rest[..end]
    })
}

#[test]
fn layers_use_only_themselves_and_what_lies_to_their_left() {
    let mut may: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (index, layer) in LAYERS.iter().enumerate() {
        may.insert(layer, LAYERS[..index].to_vec());
    }
    may.entry(ASKS_THE_KERNEL).or_default().push("kernel");
    for (module, allowed) in BESIDE {
        may.insert(module, allowed.to_vec());
    }
    let mut complaints = Vec::new();
    let mut seen = 0;
    for file in sources() {
        let module = module_of(&file.path);
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let Some(allowed) = may.get(module) else {
            complaints.push(format!(
                "{}: the module {module} is in no layer: give it a place here and in ARCHITECTURE.md",
                file.path
            ));
            continue;
        };
        for (number, line) in file.lines() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for used in uses(line) {
                seen += 1;
                if used.is_empty() {
                    complaints.push(format!("{}: spell the module out", at(&file, number)));
                } else if used != module && !allowed.contains(&used) {
                    complaints.push(format!(
                        "{}: {module} may not use {used}",
                        at(&file, number)
                    ));
                }
            }
        }
    }
    assert!(seen > 200, "uses of modules were found");
    assert_none(&complaints);
}

/// Files in which `words` may not appear as code.
fn forbid(words: &[&str], where_: impl Fn(&str) -> bool, why: &str) {
    let mut complaints = Vec::new();
    let mut looked_at = 0;
    for file in sources() {
        if !where_(&file.path) {
            continue;
        }
        looked_at += 1;
        for (number, line) in code(&file) {
            for word in words.iter().filter(|word| line.contains(**word)) {
                complaints.push(format!("{}: {word}: {why}", at(&file, number)));
            }
        }
    }
    assert!(looked_at > 0, "no file was looked at");
    assert_none(&complaints);
}

#[test]
fn the_core_has_no_clock_no_thread_no_lock_and_no_surroundings() {
    let core = |path: &str| ["engine", "journal", "units"].contains(&module_of(path));
    let words = [
        "Instant",
        "SystemTime",
        "std::thread",
        "Mutex",
        "RwLock",
        "Condvar",
        "Atomic",
        "std::env",
        "std::fs",
        "std::net",
        "std::process",
        "RefCell",
        "thread_local",
        "rand::",
        "tokio",
    ];
    forbid(
        &words,
        core,
        "the engine and the journal are plain state, or the simulator cannot repeat them",
    );
}

#[test]
fn nothing_depends_on_the_order_of_a_hash() {
    forbid(
        &["HashMap", "HashSet"],
        |_| true,
        "its order is another one in each run",
    );
}

#[test]
fn only_the_ublk_layer_knows_libublk() {
    let elsewhere = |path: &str| module_of(path) != "ublk";
    forbid(
        &["libublk"],
        elsewhere,
        "the next libublk has another interface",
    );
    // One asks whether the machine has it, the other is a load from outside.
    let others = ["src/daemon/machine.rs", "src/stamps/ring.rs"];
    let elsewhere = |path: &str| module_of(path) != "ublk" && !others.contains(&path);
    forbid(&["io_uring::"], elsewhere, "the ring is the ublk layer's");
}

#[test]
fn unsafe_code_is_where_it_is_argued() {
    let argued = [
        "src/disk/buffer.rs",
        "src/ublk/control.rs",
        "src/ublk/memory.rs",
        "src/ublk/ring.rs",
        "src/daemon/system.rs",
        "src/stamps/ring.rs",
    ];
    let elsewhere = |path: &str| !argued.contains(&path);
    forbid(
        &["unsafe "],
        elsewhere,
        "not one of the files that argue for it",
    );
    for file in files() {
        if argued.contains(&file.path.as_str()) {
            assert!(
                file.content.contains("#![expect(\n    unsafe_code")
                    || file.content.contains("#![expect(unsafe_code"),
                "{} says why",
                file.path
            );
        }
    }
}

#[test]
fn every_file_opens_with_its_story() {
    let mut complaints = Vec::new();
    let mut looked_at = 0;
    for file in files().iter().filter(|file| file.path.ends_with(".rs")) {
        looked_at += 1;
        if !file.content.starts_with("//! ") {
            complaints.push(format!("{}: begins without `//!`", file.path));
        }
    }
    assert!(looked_at > 60, "the sources were found");
    assert_none(&complaints);
}

/// In comments and messages a clause is named as the contract names it.
#[test]
fn every_clause_that_is_named_is_in_the_crash_model() {
    let files = files();
    let model = files.iter().find(|file| file.path == "docs/crash-model.md");
    let known = clauses(&model.expect("the crash model is there").content);
    assert!(known.len() > 80, "{} clauses", known.len());
    let mut complaints = Vec::new();
    for file in &files {
        for (number, line) in file.lines() {
            for clause in clauses(line) {
                if !known.contains(&clause) {
                    complaints.push(format!("{}: no clause {clause}", at(file, number)));
                }
            }
        }
    }
    assert_none(&complaints);
}

/// The names like C-ORD-1 or C-ERR-J2 in a text.
fn clauses(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (begin, _) in text.match_indices("C-") {
        let name: String = text[begin..]
            .chars()
            .take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '-')
            .collect();
        let parts: Vec<&str> = name.split('-').collect();
        let letters = parts.len() == 3 && (2..=3).contains(&parts[1].len());
        let number = parts
            .last()
            .is_some_and(|last| last.ends_with(|c: char| c.is_ascii_digit()));
        if letters && number {
            found.push(name);
        }
    }
    found
}

#[test]
fn a_clause_is_recognised_in_a_sentence() {
    let text = "see C-ORD-1, (C-ERR-J2) and C-RD-3; not C-, CRC-32C, IEC-61508 or C-ORD-.";
    assert_eq!(clauses(text), ["C-ORD-1", "C-ERR-J2", "C-RD-3"]);
}
