//! Recording on the parts that the array's health has become worse, beside the I/O that goes on.
//!
//! A part that is ill may take minutes to answer, so each has a thread of its own for it, and the control
//! thread stays free for whoever asks what is the matter.

use crate::journal::assemble::Step;
use crate::units::{PartIndex, to_u64};
use rustix::fs::SeekFrom;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The descriptors of the parts, in the order of [`PartIndex`].
#[derive(Debug)]
pub struct Recorder {
    files: Vec<Arc<OwnedFd>>,
}

impl Recorder {
    /// Over these parts.
    pub fn new(files: Vec<OwnedFd>) -> Recorder {
        Recorder {
            files: files.into_iter().map(Arc::new).collect(),
        }
    }

    /// The first part that has become smaller than `sizes` says, and how large it is: a file that was cut off,
    /// or a disk that has gone. Blocks behind its end cannot be read; a write there makes a file grow again, with
    /// zeroes in the gap.
    pub fn shrunk(&self, sizes: &[u64]) -> Option<(PartIndex, u64)> {
        let parts = (0..).map(PartIndex).zip(&self.files).zip(sizes);
        parts.into_iter().find_map(|((part, file), size)| {
            // Nobody reads or writes from where the descriptor stands.
            let found = rustix::fs::seek(file.as_ref(), SeekFrom::End(0)).ok()?;
            (found < *size).then_some((part, found))
        })
    }

    /// Carries out each part's steps; returns the parts that did not take theirs.
    pub async fn record(&self, steps: Vec<Vec<Step>>) -> Vec<(PartIndex, io::Error)> {
        let mut parts = JoinSet::new();
        for ((file, steps), part) in self.files.iter().zip(steps).zip(0..) {
            let file = Arc::clone(file);
            parts.spawn_blocking(move || (PartIndex(part), carry_out(&file, &steps)));
        }
        let results = parts.join_all().await.into_iter();
        results
            .filter_map(|(part, result)| Some((part, result.err()?)))
            .collect()
    }
}

fn carry_out(file: &impl AsFd, steps: &[Step]) -> io::Result<()> {
    for step in steps {
        match step {
            Step::Write(offset, bytes) => {
                let written =
                    rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset.0))?;
                if written < bytes.len() {
                    let missing = to_u64(bytes.len() - written);
                    let message = format!("a write at {offset} left out {missing} bytes");
                    return Err(io::Error::new(io::ErrorKind::WriteZero, message));
                }
            }
            Step::Flush => rustix::fs::fdatasync(file)?,
        }
    }
    Ok(())
}
