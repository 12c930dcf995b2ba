//! From TOML text to values, so that every complaint names its place.
//!
//! `serde` would stop at the first thing that does not fit and say so in its own words, without the
//! key and often without the line. Here the tree with its spans is walked by hand: [`Reader::section`]
//! refuses what is not in a list of known keys before anything else is looked at, and each getter
//! names file, line, key, what it expected and what it found.

use super::error::ConfigError;
use super::quantity;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One configuration file while it is being read.
pub(super) struct Reader<'a> {
    /// As it was given: for messages only.
    file: &'a Path,
    text: &'a str,
}

/// One table of the file: the top level or a section.
pub(super) struct Section<'a> {
    reader: &'a Reader<'a>,
    /// Empty at the top level.
    name: &'static str,
    /// `None`: the section is not there, every key is missing.
    table: Option<&'a DeTable<'a>>,
}

/// One key that is there.
pub(super) struct Found<'a> {
    reader: &'a Reader<'a>,
    key: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Reader<'a> {
        Reader { file, text }
    }

    /// The whole file as a tree.
    pub(super) fn parse(&self) -> Result<DeTable<'a>, ConfigError> {
        match DeTable::parse(self.text) {
            Ok(table) => Ok(table.into_inner()),
            Err(error) => {
                let at = error.span().map_or(self.text.len(), |span| span.start);
                let before = self.before(at);
                let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
                // The parser may say what it expected on further lines.
                let mut what = error.message().split('\n').collect::<Vec<_>>().join(", ");
                // The parser points at the second one and does not name it.
                if let Some(key) = error.span().and_then(|span| self.text.get(span))
                    && what == "duplicate key"
                {
                    what = format!("duplicate key {}", shortened(key));
                }
                Err(ConfigError::Syntax {
                    file: self.file.to_owned(),
                    line: self.line(at),
                    column: before[line_start..].chars().count() + 1,
                    what,
                })
            }
        }
    }

    /// The top level of the tree, which may hold nothing but `keys`.
    pub(super) fn top(
        &'a self,
        table: &'a DeTable<'a>,
        keys: &[&str],
    ) -> Result<Section<'a>, ConfigError> {
        self.refuse_unknown("", table, keys)?;
        Ok(Section {
            reader: self,
            name: "",
            table: Some(table),
        })
    }

    /// The first key in the file that is not one of `keys` is refused.
    fn refuse_unknown(
        &self,
        section: &str,
        table: &DeTable<'_>,
        keys: &[&str],
    ) -> Result<(), ConfigError> {
        let unknown = table
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !keys.contains(&key.get_ref().as_ref()))
            .min_by_key(|key| key.span().start);
        let Some(unknown) = unknown else {
            return Ok(());
        };
        let name = unknown.get_ref().as_ref();
        let hint = if section.is_empty() && super::LATER_SECTIONS.contains(&name) {
            "this section is not in this version".to_owned()
        } else if let Some(near) = nearest(name, keys) {
            format!("did you mean {}?", qualified(section, near))
        } else if section.is_empty() {
            format!("expected one of {}", keys.join(", "))
        } else {
            format!("[{section}] has {}", keys.join(", "))
        };
        Err(ConfigError::UnknownKey {
            file: self.file.to_owned(),
            line: self.line(unknown.span().start),
            key: qualified(section, &shortened(name)),
            hint,
        })
    }

    fn before(&self, at: usize) -> &str {
        self.text.get(..at).unwrap_or(self.text)
    }

    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> usize {
        self.before(at).matches('\n').count() + 1
    }
}

impl<'a> Section<'a> {
    /// A section below this one, which may hold nothing but `keys`. It need not be there.
    pub(super) fn section(
        &self,
        name: &'static str,
        keys: &[&str],
    ) -> Result<Section<'a>, ConfigError> {
        let table = match self.get(name) {
            None => None,
            Some(found) => match found.value.get_ref() {
                DeValue::Table(table) => Some(table),
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => return Err(found.refuse(&format!("a section [{name}]"))),
            },
        };
        if let Some(table) = table {
            self.reader.refuse_unknown(name, table, keys)?;
        }
        Ok(Section {
            reader: self.reader,
            name,
            table,
        })
    }

    /// A key, if it is there.
    pub(super) fn get(&self, key: &str) -> Option<Found<'a>> {
        let value = self
            .table?
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)?
            .1;
        Some(Found {
            reader: self.reader,
            key: qualified(self.name, key),
            value,
        })
    }

    /// A key that must be there.
    pub(super) fn need(&self, key: &str, expected: &str) -> Result<Found<'a>, ConfigError> {
        self.get(key).ok_or_else(|| self.missing(key, expected))
    }

    pub(super) fn missing(&self, key: &str, expected: &str) -> ConfigError {
        ConfigError::Missing {
            file: self.reader.file.to_owned(),
            key: qualified(self.name, key),
            expected: expected.to_owned(),
        }
    }
}

impl Found<'_> {
    /// Its value is not what it may be.
    pub(super) fn refuse(&self, expected: &str) -> ConfigError {
        self.refuse_as(expected, &described(self.value.get_ref()))
    }

    /// The same, with words of its own for what was found.
    pub(super) fn refuse_as(&self, expected: &str, found: &str) -> ConfigError {
        ConfigError::Value {
            file: self.reader.file.to_owned(),
            line: self.reader.line(self.value.span().start),
            key: self.key.clone(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    fn text(&self) -> Option<&str> {
        self.value.get_ref().as_str()
    }

    /// Whether it is a list: some keys will take one in a later version.
    pub(super) fn is_list(&self) -> bool {
        self.value.get_ref().is_array()
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let chosen = self
            .text()
            .and_then(|text| words.iter().find(|(word, _)| *word == text));
        chosen.map(|(_, value)| *value).ok_or_else(|| {
            let all: Vec<String> = words
                .iter()
                .map(|(word, _)| format!("\"{word}\""))
                .collect();
            self.refuse(&all.join(" or "))
        })
    }

    /// Whatever `parse` makes of the text.
    pub(super) fn parsed<T>(
        &self,
        parse: impl Fn(&str) -> Option<T>,
        expected: &str,
    ) -> Result<T, ConfigError> {
        self.text()
            .and_then(parse)
            .ok_or_else(|| self.refuse(expected))
    }

    /// Whether it is the word `auto`.
    pub(super) fn is_auto(&self) -> bool {
        self.text() == Some("auto")
    }

    /// A size in bytes within `range` for which `fits` holds, `rule` being what it says.
    pub(super) fn size(
        &self,
        range: RangeInclusive<u64>,
        rule: &str,
        fits: impl Fn(u64) -> bool,
    ) -> Result<u64, ConfigError> {
        let (least, most) = (
            quantity::size_exact(*range.start()),
            quantity::size_exact(*range.end()),
        );
        self.size_within(&format!("{rule} from {least} to {most}"), |size| {
            range.contains(&size) && fits(size)
        })
    }

    /// A size in bytes from `least`, which is what `why` says, to `most`.
    pub(super) fn size_from(
        &self,
        least: u64,
        why: &str,
        most: u64,
        rule: &str,
    ) -> Result<u64, ConfigError> {
        let range = least..=most;
        let (least, most) = (quantity::size_exact(least), quantity::size_exact(most));
        self.size_within(&format!("{rule} from {least} ({why}) to {most}"), |size| {
            range.contains(&size)
        })
    }

    fn size_within(&self, expected: &str, fits: impl Fn(u64) -> bool) -> Result<u64, ConfigError> {
        let with_units = format!("{expected}, written with B, KiB, MiB, GiB or TiB");
        let size = self.parsed(quantity::parse_size, &with_units)?;
        if fits(size) {
            Ok(size)
        } else {
            Err(self.refuse(expected))
        }
    }

    /// A whole number within `range`, written as a number or as text with `Ki` or `Mi`.
    pub(super) fn count(&self, range: RangeInclusive<u64>, what: &str) -> Result<u64, ConfigError> {
        let count = match self.value.get_ref() {
            DeValue::Integer(_) => self.integer(),
            DeValue::String(text) => quantity::parse_count(text),
            DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => None,
        };
        count.filter(|count| range.contains(count)).ok_or_else(|| {
            self.refuse(&format!(
                "{what} from {} to {}, as a number or written with Ki or Mi",
                quantity::count_exact(*range.start()),
                quantity::count_exact(*range.end())
            ))
        })
    }

    /// A whole number for which `fits` holds, without quotes.
    pub(super) fn number(
        &self,
        expected: &str,
        fits: impl Fn(u64) -> bool,
    ) -> Result<u64, ConfigError> {
        self.integer()
            .filter(|number| fits(*number))
            .ok_or_else(|| self.refuse(expected))
    }

    fn integer(&self) -> Option<u64> {
        let integer = self.value.get_ref().as_integer()?;
        u64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// A part of one, in thousandths.
    pub(super) fn permille(&self, range: RangeInclusive<u16>) -> Result<u16, ConfigError> {
        let number = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
            DeValue::String(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => None,
        };
        // The range is compared before rounding up to a thousandth, so that 0.9504 is not let in.
        number
            .filter(|number| (fraction(*range.start())..=fraction(*range.end())).contains(number))
            .and_then(|number| range.clone().find(|permille| fraction(*permille) >= number))
            .ok_or_else(|| {
                self.refuse(&format!(
                    "a number from {} to {}, without quotes",
                    fraction(*range.start()),
                    fraction(*range.end())
                ))
            })
    }

    /// A time within `range`; `zero` says what 0 stands for, where 0 is allowed beside the range.
    pub(super) fn time(
        &self,
        range: RangeInclusive<Duration>,
        zero: Option<&str>,
    ) -> Result<Duration, ConfigError> {
        let or_zero = zero.map_or(String::new(), |meaning| format!(", or \"0\" {meaning}"));
        let expected = format!(
            "a time from {} to {}{or_zero}",
            quantity::time_exact(*range.start()),
            quantity::time_exact(*range.end())
        );
        let time = self.parsed(
            quantity::parse_time,
            &format!("{expected}, like \"5s\" or \"200ms\""),
        )?;
        if range.contains(&time) || (zero.is_some() && time.is_zero()) {
            Ok(time)
        } else {
            Err(self.refuse(&expected))
        }
    }

    /// A path, taken from `folder` if it is relative.
    pub(super) fn path(&self, folder: &Path) -> Result<PathBuf, ConfigError> {
        let usable = |text: &str| {
            let path = plain(&folder.join(text));
            let fits = path.as_os_str().len() <= super::limits::PATH_BYTES_MAX;
            (!text.is_empty() && !text.contains('\0') && fits).then_some(path)
        };
        self.parsed(usable, "the path of a disk or file")
    }

    /// The elements of a list, each as a key of its own.
    pub(super) fn list(&self, expected: &str) -> Result<Vec<Found<'_>>, ConfigError> {
        let DeValue::Array(elements) = self.value.get_ref() else {
            return Err(self.refuse(expected));
        };
        let element = |(index, value)| Found {
            reader: self.reader,
            key: format!("{}[{index}]", self.key),
            value,
        };
        Ok(elements.iter().enumerate().map(element).collect())
    }
}

fn fraction(permille: u16) -> f64 {
    f64::from(permille) / 1000.0
}

/// The same path without `.` and doubled slashes. `..` stays: behind a symbolic link it means
/// something else than the letters say.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

fn qualified(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

/// A value as a message shows it.
fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", shortened(text)),
        DeValue::Integer(integer) => format!("the number {integer}"),
        DeValue::Float(float) => format!("the number {float}"),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => format!("the date {datetime}"),
        DeValue::Array(elements) => format!("a list of {}", elements.len()),
        DeValue::Table(_) => "a section".to_owned(),
    }
}

/// At most 60 characters, nothing in it that could garble a terminal or break the line.
fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// The one of `keys` that was probably meant: at most a third of its letters differ.
pub(crate) fn nearest<'k>(name: &str, keys: &[&'k str]) -> Option<&'k str> {
    if name.len() > 64 {
        return None;
    }
    keys.iter()
        .map(|key| (distance(&name.to_lowercase(), key), *key))
        .filter(|(distance, key)| distance * 3 <= key.len().max(3))
        .min()
        .map(|(_, key)| key)
}

/// Letters to change, add, take away or swap with their neighbour until `a` is `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}
