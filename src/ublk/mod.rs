//! A ublk server: the kernel's requests for one block device, handed to a [`Server`], and the server's
//! own input and output, on one thread and one ring.
//!
//! ```text
//!    control thread                              queue thread
//!
//!    Device::create or ::recover
//!    device.serve(server) ------ spawns -------> ring, files, buffers, one FETCH for each tag
//!    serving.start()      START_DEV              loop, one turn each:
//!       or END_USER_RECOVERY                       submit everything and wait: the only system call
//!    serving.waker()      ------ wakes --------->  Server::request, ::completed, ::woken
//!    serving.stop()       STOP_DEV                 Server::advance: operations, then replies
//!    serving.join()       <----- the server -----  ends: kernel took its commands back, or Server::leaves
//!    Device::delete(id)   DEL_DEV
//! ```
//!
//! This is the only module that knows libublk. It owns the device's control commands, the ring, the
//! buffers of the tags and the order in which things reach the kernel: within a turn all operations go
//! into the ring before all replies, and replies keep the order in which the server gave them.
//!
//! It promises the server that a request lies within the device and is a multiple of its block, that
//! every operation is answered by exactly one [`Server::completed`], and that nothing allocates and no
//! lock is taken between a request and its reply. It does not retry, split or merge anything.
//!
//! Memory in flight belongs to the kernel. Between giving an operation and its completion the server
//! may not write to what the operation reads from, nor touch what it reads into. For the buffers of the
//! tags this is asserted; for the [`Arena`] it is the server's promise.

mod control;
mod device;
mod error;
mod memory;
mod queue;
mod request;
mod ring;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::disk::buffer::Arena;
use crate::engine::request::Request;

pub use device::{
    Cache, Device, Found, Media, Parameters, Serving, State, Tuning, Zeroing, any_device,
    check_driver, find, look,
};
pub use error::Error;
pub use queue::{End, Health, Output, Waker};

/// One of the server's own files, by its place in [`Needs::files`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileSlot(pub u8);

/// When a write counts as completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// Once the disk has it, perhaps in a volatile cache.
    Plain,
    /// Once this very write is durable (`RWF_DSYNC`). It says nothing about writes before it.
    Dsync,
}

/// What a server needs from the queue thread, asked once before the first request.
#[derive(Debug)]
pub struct Needs<'a> {
    /// The files of its operations. They must stay open until the loop has ended.
    pub files: Vec<BorrowedFd<'a>>,
    /// The memory of [`Memory::Arena`](crate::engine::port::Memory::Arena), registered with the ring.
    pub arena: Option<&'a Arena>,
    /// Operations in flight at most. Their ids are below this.
    pub operations: u32,
    /// Segments of one operation at most.
    pub segments: u32,
}

/// Who answers the requests of a device.
///
/// All functions are called on the queue thread, one at a time. `now` is the time since the queue began,
/// read once a turn.
///
/// A turn is: any number of `request`, `completed` and `woken` in the order in which they came, then one
/// `advance`. There is a turn whenever something came, at every [`tick`](Server::tick), and without
/// waiting while [`wants_turn`](Server::wants_turn).
pub trait Server {
    /// What the queue thread must set up.
    fn needs(&self) -> Needs<'_>;

    /// A request came in. Its tag is the server's until it is given back through [`Output::reply`],
    /// in this turn or any later one. A write's data is in the tag's buffer all that time.
    fn request(&mut self, request: Request, now: Duration);

    /// One of the server's own operations ended. `result` is as the kernel gave it: bytes, or a negative
    /// error number. Its id is free again.
    fn completed(&mut self, id: u32, result: i32, now: Duration);

    /// Somebody called [`Waker::wake`], once or several times, since the last call.
    fn woken(&mut self, now: Duration);

    /// The end of a turn: everything that came has been handed over. Operations and replies go out
    /// through `out`.
    fn advance(&mut self, out: &mut Output<'_>, now: Duration);

    /// The device was stopped: all requests have been answered and no more will come. The turns go on
    /// until the server is idle.
    fn stopped(&mut self, _now: Duration) {}

    /// There is more to do without waiting for anything: the next turn comes at once.
    fn wants_turn(&self) -> bool;

    /// Nothing of the server's own is in flight or waiting. After the kernel has taken its commands back,
    /// and when leaving, the loop ends as soon as this holds.
    fn is_idle(&self) -> bool;

    /// The server wants the loop to end without stopping the device, so that another process takes it
    /// over. Requests that were not answered stay with the kernel, which gives them to the next server.
    fn leaves(&self) -> bool;

    /// How long the next turn may be away if nothing comes. Asked each time the clock is set.
    fn tick(&self) -> Duration {
        Duration::from_millis(10)
    }
}
