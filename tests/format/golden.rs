//! The golden images: how they are kept, and how they were made.
//!
//! One text file for each part: its size, then a line for each 32 bytes that are not all zero, the offset
//! before them, in hexadecimal.

use crate::array::{Array, Ask, MAX_IO};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ujournal::journal::MARGIN;
use ujournal::journal::geometry::{Placement, Shape, journal_size_min};
use ujournal::units::{FRAME, KIB, to_usize};

/// Bytes on one line.
const LINE: usize = 32;

/// A kept array.
#[derive(Clone, Copy, Debug)]
pub struct Golden {
    /// Its folder.
    pub name: &'static str,
    /// Its parts' files, in order.
    pub parts: &'static [&'static str],
}

/// Two members and a journal of its own.
pub const DETACHED: Golden = Golden {
    name: "v1-detached",
    parts: &["member-0", "member-1", "journal"],
};
/// Two members with the journal in their middle.
pub const MIDDLE: Golden = Golden {
    name: "v1-middle",
    parts: &["member-0", "member-1"],
};

impl Golden {
    fn file(&self, folder: &Path, part: &str) -> PathBuf {
        folder.join(self.name).join(format!("{part}.txt"))
    }

    /// The images of its parts.
    pub fn load(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format/golden");
        let load = |part: &&str| {
            let file = self.file(&folder, part);
            let text = fs::read_to_string(&file);
            parse(&text.unwrap_or_else(|error| panic!("{}: {error}", file.display())))
        };
        self.parts.iter().map(load).collect()
    }

    /// Writes `images` as its parts below `folder`.
    pub fn store(&self, folder: &Path, images: &[Vec<u8>]) {
        assert_eq!(images.len(), self.parts.len());
        fs::create_dir_all(folder.join(self.name)).expect("the folder can be made");
        for (part, image) in self.parts.iter().zip(images) {
            fs::write(self.file(folder, part), render(image)).expect("the file can be written");
        }
    }

    /// What its array is.
    pub fn shape(&self) -> Shape {
        let detached = self.name == DETACHED.name;
        let (placement, chunk) = if detached {
            (Placement::Detached, 4 * KIB)
        } else {
            (Placement::Middle, 8 * KIB)
        };
        let journal_size = journal_size_min(placement, 2, chunk, MAX_IO);
        let region = if detached { 0 } else { journal_size / 2 };
        // Room for 16 chunks, the reserved bitmap and an odd sector that nothing can use.
        let member_size = 2 * MARGIN + region + 16 * chunk + FRAME + 512;
        Shape {
            members: 2,
            chunk,
            member_size,
            placement,
            journal_size,
        }
    }

    /// Makes it: two lives, both ended by a crash of the daemon. See `golden/README.md`.
    pub fn make(&self) -> Array {
        let mut array = Array::label(self.shape(), &[0, 12_288, 0]);
        let mut life = array.start();
        life.ask(&[Ask::Write(0, 8), Ask::Write(21, 3), Ask::Write(100, 5)]);
        life.ask(&[Ask::Flush]);
        // Replay brings them home and a MARK says so.
        life.wait(Duration::from_secs(3));
        life.ask(&[
            Ask::Write(4, 2),
            Ask::Discard(100, 8),
            Ask::ZeroesKept(40, 24),
        ]);
        life.ask(&[Ask::WriteNow(200, 1)]);
        life.ask(&[Ask::Zeroes(21, 1), Ask::Write(14, 16)]);
        drop(life);
        let mut life = array.start();
        life.ask(&[Ask::Write(22, 1)]);
        life.ask(&[Ask::Flush]);
        drop(life);
        array
    }
}

fn render(image: &[u8]) -> String {
    let mut text = format!("size {}\n", image.len());
    for (bytes, line) in image.chunks(LINE).zip(0..) {
        if bytes.iter().any(|byte| *byte != 0) {
            write!(text, "{:08x}:", line * LINE).expect("a String takes everything");
            for (byte, i) in bytes.iter().zip(0..) {
                let blank = if i % 8 == 0 { " " } else { "" };
                write!(text, "{blank}{byte:02x}").expect("a String takes everything");
            }
            text.push('\n');
        }
    }
    text
}

fn parse(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let size = lines
        .next()
        .and_then(|line| line.strip_prefix("size "))
        .expect("a size first");
    let mut image = vec![0; to_usize(size.parse().expect("a number"))];
    for line in lines {
        let (offset, digits) = line.split_once(':').expect("an offset before the bytes");
        let offset = usize::from_str_radix(offset, 16).expect("hexadecimal");
        let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b' ').collect();
        for (pair, at) in digits.chunks_exact(2).zip(offset..) {
            let pair = std::str::from_utf8(pair).expect("digits");
            image[at] = u8::from_str_radix(pair, 16).expect("hexadecimal");
        }
    }
    image
}
