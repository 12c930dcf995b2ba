//! The repository keeps its own rules.
//!
//! Goal: what `ARCHITECTURE.md` and the style of the project promise about the code and the pages is true
//! in every commit. Method: every file is read as text and looked at; each complaint names file and line.
//! What the compiler, rustfmt, clippy or shellcheck can say is left to them.

mod code;
mod pages;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are no part of what is kept.
const NOT_KEPT: [&str; 4] = ["target", ".git", ".lab", ".cargo"];

/// One file of the repository.
#[derive(Debug)]
pub struct Text {
    /// From the repository's root on, with slashes.
    pub path: String,
    /// All of it.
    pub content: String,
}

impl Text {
    /// The lines with their numbers.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.content.lines())
    }
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files, in the order of their paths.
pub fn files() -> Vec<Text> {
    let mut paths = Vec::new();
    collect(root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).expect("it was found there");
        let bytes = fs::read(&path).expect("it was found a moment ago");
        Text {
            path: name.display().to_string(),
            content: String::from_utf8(bytes)
                .unwrap_or_else(|_| panic!("{}: not a text in UTF-8", name.display())),
        }
    };
    let files: Vec<Text> = paths.into_iter().map(read).collect();
    assert!(files.len() > 50, "the repository was found");
    files
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let entry = entry.expect("an entry of it");
        let name = entry.file_name();
        let kind = entry.file_type().expect("its kind is known");
        if kind.is_dir() && !NOT_KEPT.iter().any(|other| name == *other) {
            collect(&entry.path(), paths);
        } else if kind.is_file() && !name.to_string_lossy().ends_with(".swp") && name != ".git" {
            paths.push(entry.path());
        }
    }
}

/// Fails with all complaints at once.
pub fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The place of a line, for a complaint.
pub fn at(file: &Text, line: usize) -> String {
    format!("{}:{line}", file.path)
}

#[test]
fn no_file_knows_the_machine_that_it_was_written_on() {
    // Put together here, so that this file does not complain about itself.
    let forbidden = [["/wo", "rk/"].concat(), ["/ho", "me/"].concat()];
    let mut complaints = Vec::new();
    for file in files() {
        for (number, line) in file.lines() {
            let found = forbidden.iter().find(|text| line.contains(*text));
            complaints.extend(found.map(|text| format!("{}: {text}", at(&file, number))));
        }
    }
    assert_none(&complaints);
}
