//! What is said over the control socket: one JSON object a line, either way.
//!
//! ```text
//!   -> {"op":"status"}            <- {"status":{...}}
//!   -> {"op":"sync"}              <- {"progress":{...}} ... {"done":{}}
//!   -> {"op":"stop","force":true} <- {"progress":{...}} ... {"done":{}}
//!                                 <- {"error":{"exit":3,"message":"..."}} instead of any of these
//! ```
//!
//! One request at a time on a connection, as many as wanted one after the other. Unknown fields are
//! ignored, so that an older side understands a newer one as far as it can.

use super::progress::Progress;
use super::status::Status;
use crate::outcome::Failure;
use serde::{Deserialize, Serialize};

/// Bytes of a request with its newline.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Bytes of an answer with its newline: a status with every list full is far below.
pub const REPLY_BYTES_MAX: usize = 1 << 20;

/// What a command asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// How it fares.
    Status,
    /// Bring home what was answered so far.
    Sync,
    /// Bring everything home, mark it clean, take the device away.
    Stop {
        /// Although somebody has the device open.
        #[serde(default)]
        force: bool,
    },
}

/// What the daemon says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It goes on; more follows.
    Progress(Progress),
    /// The answer to [`Request::Status`].
    Status(Box<Status>),
    /// It was done.
    Done {},
    /// It was not.
    Error(Failure),
}

/// A line that is no request.
pub(super) fn parse_request(line: &[u8]) -> Result<Request, Failure> {
    serde_json::from_slice(line).map_err(|error| {
        Failure::failed(format!(
            "control socket: expected a request like {{\"op\":\"status\"}}, found: {error}"
        ))
    })
}

/// `message` as a line.
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("plain data always has a JSON form");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_have_their_documented_form() {
        for (text, request) in [
            (r#"{"op":"status"}"#, Request::Status),
            (r#"{"op":"sync"}"#, Request::Sync),
            (
                r#"{"op":"stop","force":true}"#,
                Request::Stop { force: true },
            ),
            (r#"{"op":"stop"}"#, Request::Stop { force: false }),
            (
                r#"{"op":"stop","later":[1]}"#,
                Request::Stop { force: false },
            ),
        ] {
            assert_eq!(parse_request(text.as_bytes()).expect(text), request);
        }
        let text = |reply: &Reply| String::from_utf8(line(reply)).expect("text");
        assert_eq!(text(&Reply::Done {}), "{\"done\":{}}\n");
        assert_eq!(
            text(&Reply::Error(Failure::refused("no"))),
            "{\"error\":{\"exit\":3,\"message\":\"no\"}}\n"
        );
    }

    #[test]
    fn any_bytes_give_a_request_or_an_error() {
        proptest::proptest!(|(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200))| {
            let _outcome = parse_request(&bytes);
        });
        for text in [
            "",
            "{}",
            "null",
            "[]",
            r#"{"op":"format"}"#,
            r#"{"op":5}"#,
            r#"{"op":"stop","force":"yes"}"#,
        ] {
            let failure = parse_request(text.as_bytes()).expect_err(text);
            assert!(!failure.message.contains('\n'), "{failure}");
        }
        assert!(parse_request("[".repeat(4000).as_bytes()).is_err());
    }
}
