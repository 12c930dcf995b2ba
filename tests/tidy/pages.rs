//! The pages: links lead somewhere, numbers and words agree with the code.

use crate::{Text, assert_none, at, files, root};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn pages() -> Vec<Text> {
    let mut pages = files();
    pages.retain(|file| file.path.ends_with(".md"));
    assert!(pages.len() >= 5, "the pages were found");
    pages
}

fn page(path: &str) -> Text {
    let found = pages().into_iter().find(|page| page.path == path);
    found.unwrap_or_else(|| panic!("{path} is missing"))
}

/// The lines of a page outside its blocks of code.
fn prose(page: &Text) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    page.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !fence && !in_code
    })
}

/// The targets of `[text](target)` in a line, outside `code`.
fn links(line: &str) -> Vec<String> {
    let mut text = String::new();
    for (index, piece) in line.split('`').enumerate() {
        if index % 2 == 0 {
            text.push_str(piece);
        }
    }
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_heading(page: &Text, wanted: &str) -> bool {
    prose(page).any(|(_, line)| line.starts_with('#') && anchor(line) == wanted)
}

/// Without `..`, as far as the text alone tells.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                assert!(plain.pop(), "{} leaves the repository", path.display());
            }
            Component::CurDir => {}
            other @ (Component::Normal(_) | Component::RootDir | Component::Prefix(_)) => {
                plain.push(other);
            }
        }
    }
    plain
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut complaints = Vec::new();
    let mut followed = 0;
    for page in &pages {
        for (number, line) in prose(page) {
            for link in links(line) {
                if link.contains("://") {
                    complaints.push(format!(
                        "{}: {link}: leads out of the repository",
                        at(page, number)
                    ));
                    continue;
                }
                followed += 1;
                let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
                let folder = Path::new(&page.path)
                    .parent()
                    .expect("a file is in a folder");
                let target = if path.is_empty() {
                    PathBuf::from(&page.path)
                } else {
                    plain(&folder.join(path))
                };
                if !root().join(&target).exists() {
                    complaints.push(format!("{}: {link}: is not there", at(page, number)));
                    continue;
                }
                let other = pages.iter().find(|other| Path::new(&other.path) == target);
                if !heading.is_empty() && !other.is_some_and(|other| has_heading(other, heading)) {
                    complaints.push(format!("{}: {link}: no such heading", at(page, number)));
                }
            }
        }
    }
    assert!(followed > 50, "links were found");
    assert_none(&complaints);
}

#[test]
fn pages_are_plain_text() {
    let mut complaints = Vec::new();
    for page in pages() {
        for (number, line) in page.lines() {
            let mut complain =
                |what: &str| complaints.push(format!("{}: {what}", at(&page, number)));
            if !line.is_ascii() {
                complain("a character beyond ASCII");
            }
            if line.ends_with(' ') || line.contains('\t') {
                complain("blanks at the end, or a tab");
            }
            if line.len() > 120 && !line.trim_start().starts_with('|') {
                complain("longer than 120 characters");
            }
        }
        if !page.content.ends_with('\n') || page.content.ends_with("\n\n") {
            complaints.push(format!("{}: ends without one newline", page.path));
        }
        if page.content.matches("```").count() % 2 != 0 {
            complaints.push(format!("{}: a block of code does not end", page.path));
        }
    }
    assert_none(&complaints);
}

/// The items of a numbered list, each as one line.
fn numbered<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for line in lines {
        let number = format!("{}. ", items.len() + 1);
        if let Some(item) = line.strip_prefix(&number) {
            items.push(item.to_owned());
        } else if let (Some(item), true) = (items.last_mut(), line.starts_with(' ')) {
            item.push(' ');
            item.push_str(line.trim());
        } else if !items.is_empty() {
            break;
        }
    }
    items
}

#[test]
fn the_invariants_of_the_engine_stand_in_the_architecture_under_the_same_numbers() {
    let files = files();
    let engine = files.iter().find(|file| file.path == "src/engine/mod.rs");
    let engine = engine.expect("the engine is there");
    let story = engine
        .content
        .lines()
        .map_while(|line| line.strip_prefix("//!"));
    let story = story.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let ours = numbered(story.skip_while(|line| *line != "# Invariants"));
    assert_eq!(ours.len(), 7, "{ours:#?}");

    let architecture = page("ARCHITECTURE.md");
    let chapter = architecture
        .content
        .lines()
        .skip_while(|line| *line != "## The invariants");
    let theirs = numbered(chapter);
    assert!(theirs.len() >= ours.len(), "{theirs:#?}");
    for (number, (ours, theirs)) in (1..).zip(ours.iter().zip(&theirs)) {
        assert!(
            theirs.starts_with(ours.as_str()),
            "invariant {number}:\n  src/engine/mod.rs: {ours}\n  ARCHITECTURE.md:   {theirs}"
        );
    }

    let mut complaints = Vec::new();
    for file in &files {
        for (line, text) in file.lines() {
            for rest in text.split("(invariant ").skip(1) {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                let known = digits
                    .parse()
                    .is_ok_and(|n: usize| (1..=theirs.len()).contains(&n));
                if !known && !digits.is_empty() {
                    complaints.push(format!("{}: no invariant {digits}", at(file, line)));
                }
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_clause_of_the_crash_model_says_how_far_it_is_built() {
    let model = page("docs/crash-model.md");
    let mut clauses = 0;
    for (number, line) in prose(&model).filter(|(_, line)| line.starts_with("| C-")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{}", at(&model, number));
        let (state, missing) = (cells[3], cells[4]);
        assert!(
            ["built", "partly", "later"].contains(&state),
            "{}: {state}",
            at(&model, number)
        );
        assert!(
            state == "built" || !missing.is_empty(),
            "{}: what is missing?",
            at(&model, number)
        );
        clauses += 1;
    }
    assert!(clauses > 80, "{clauses} clauses");
}

#[test]
fn decisions_are_numbered_listed_and_complete() {
    let pages = pages();
    let folder = "docs/decisions/";
    let records: Vec<&Text> = pages
        .iter()
        .filter(|page| page.path.starts_with(folder) && !page.path.ends_with("README.md"))
        .collect();
    let index = page("docs/decisions/README.md").content;
    assert!(records.len() >= 8, "{} records", records.len());
    for (number, record) in (1..).zip(records) {
        let name = record.path.strip_prefix(folder).expect("it is in there");
        assert!(
            name.starts_with(&format!("{number:04}-")),
            "{name} is record number {number}"
        );
        assert!(
            record.content.starts_with(&format!("# {number:04}: ")),
            "{name}: its title"
        );
        assert!(
            index.contains(&format!("[{number:04}]({name})")),
            "{name} is in the list"
        );
        for word in ["**Context.**", "**Decision.**", "**Rejected.**"] {
            assert!(record.content.contains(word), "{name}: {word}");
        }
    }
}

#[test]
fn the_readme_explains_every_key_and_every_command() {
    let readme = page("README.md").content;
    let files = files();
    let example = "target-configs/raid0-two-disks-detached-journal.toml";
    let example = files
        .iter()
        .find(|file| file.path == example)
        .expect("the example with all keys");
    let mut section = String::new();
    let mut keys = 0;
    for (number, line) in example.lines() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = format!("{name}.");
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            keys += 1;
            let key = format!("| `{section}{key}` |");
            assert!(
                readme.contains(&key),
                "{}: the README has no row {key}",
                at(example, number)
            );
        }
    }
    assert!(keys >= 17, "{keys} keys");
    assert!(
        readme.contains("| `journal.placement` |"),
        "the one key that the example lacks"
    );

    let help = Command::new(env!("CARGO_BIN_EXE_ujournal"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.map_while(|line| line.split_whitespace().next());
    let mut count = 0;
    for command in commands {
        count += 1;
        assert!(
            readme.contains(&format!("ujournal {command} ")),
            "the README explains {command}"
        );
    }
    assert!(count >= 9, "{count} commands");
}
