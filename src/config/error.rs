//! What can be wrong with a configuration, each as one sentence: file, line, key, expected, found.

use std::io;
use std::path::PathBuf;

/// A configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read at all.
    #[error("{}: cannot read the configuration", file.display())]
    Read {
        /// The file, as it was given.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is not a text that could be a configuration.
    #[error("{}: expected {expected}, found {found}", file.display())]
    NotText {
        /// The file, as it was given.
        file: PathBuf,
        /// What a configuration is.
        expected: String,
        /// What this is.
        found: String,
    },
    /// It is not TOML.
    #[error("{}, line {line}, column {column}: not valid TOML: {what}", file.display())]
    Syntax {
        /// The file, as it was given.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
        /// The parser's words.
        what: String,
    },
    /// A key that this version does not know.
    #[error("{}, line {line}: unknown key {key}: {hint}", file.display())]
    UnknownKey {
        /// The file, as it was given.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// With its section.
        key: String,
        /// The nearest key, or all of them, or that it belongs to a later version.
        hint: String,
    },
    /// A key that must be there is not.
    #[error("{}: {key} is missing: expected {expected}", file.display())]
    Missing {
        /// The file, as it was given.
        file: PathBuf,
        /// With its section.
        key: String,
        /// What it should say.
        expected: String,
    },
    /// A key has a value that it cannot have.
    #[error("{}, line {line}: {key}: expected {expected}, found {found}", file.display())]
    Value {
        /// The file, as it was given.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// With its section.
        key: String,
        /// What it may say.
        expected: String,
        /// What it says.
        found: String,
    },
}
