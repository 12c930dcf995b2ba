//! From the driver's descriptor to a [`Request`], or a reason to refuse it.
//!
//! The kernel checks a request before the driver sees it, so a refusal means that one of the two is
//! wrong about the device. It fails that request and nothing else.

use libublk::sys;

use crate::engine::request::{Durability, Op, Request, Tag, Unmap};
use crate::units::Lba;

/// What a device takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Sectors on the device.
    pub device: u64,
    /// Sectors in a logical block.
    pub block: u32,
    /// Sectors in one READ or WRITE at most.
    pub transfer: u32,
}

/// Why a request is not handed to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// A number that this program does not know.
    #[error("operation {number} is not known")]
    Operation { number: u32 },
    /// Not on the device, or not on block borders.
    #[error("{sectors} sectors at {lba} are not whole blocks of a device of {device}")]
    Range { lba: u64, sectors: u32, device: u64 },
    /// More than fits into a tag's buffer.
    #[error("{sectors} sectors in one transfer, at most {most} expected")]
    Length { sectors: u32, most: u32 },
}

/// Reads a descriptor. Its numbers are in sectors of 512 bytes, whatever the logical block.
pub(super) fn parse(
    descriptor: &sys::ublksrv_io_desc,
    tag: Tag,
    bounds: Bounds,
) -> Result<Request, Refusal> {
    let flags = descriptor.op_flags;
    let (lba, sectors) = (descriptor.start_sector, descriptor.nr_sectors);
    let op = match flags & 0xff {
        sys::UBLK_IO_OP_READ => Op::Read,
        sys::UBLK_IO_OP_WRITE => Op::Write,
        sys::UBLK_IO_OP_FLUSH => Op::Flush,
        sys::UBLK_IO_OP_DISCARD => Op::Discard,
        sys::UBLK_IO_OP_WRITE_ZEROES if flags & sys::UBLK_IO_F_NOUNMAP != 0 => {
            Op::WriteZeroes(Unmap::Forbidden)
        }
        sys::UBLK_IO_OP_WRITE_ZEROES => Op::WriteZeroes(Unmap::Allowed),
        number => return Err(Refusal::Operation { number }),
    };
    if op == Op::Flush {
        return Ok(Request {
            tag,
            op,
            lba: Lba(0),
            sectors: 0,
            durability: Durability::Later,
        });
    }
    let on_blocks =
        lba.is_multiple_of(u64::from(bounds.block)) && sectors.is_multiple_of(bounds.block);
    let inside = lba
        .checked_add(u64::from(sectors))
        .is_some_and(|end| end <= bounds.device);
    if sectors == 0 || !on_blocks || !inside {
        return Err(Refusal::Range {
            lba,
            sectors,
            device: bounds.device,
        });
    }
    if matches!(op, Op::Read | Op::Write) && sectors > bounds.transfer {
        return Err(Refusal::Length {
            sectors,
            most: bounds.transfer,
        });
    }
    let forced = flags & sys::UBLK_IO_F_FUA != 0 && op != Op::Read;
    let durability = if forced {
        Durability::Now
    } else {
        Durability::Later
    };
    Ok(Request {
        tag,
        op,
        lba: Lba(lba),
        sectors,
        durability,
    })
}

#[cfg(test)]
mod tests {
    //! Goal: no descriptor panics, and each is taken or refused for the right reason.

    use super::*;

    const BOUNDS: Bounds = Bounds {
        device: 8192,
        block: 8,
        transfer: 1024,
    };

    fn parsed(op_flags: u32, start_sector: u64, nr_sectors: u32) -> Result<Request, Refusal> {
        let descriptor = sys::ublksrv_io_desc {
            op_flags,
            nr_sectors,
            start_sector,
            addr: 0,
        };
        parse(&descriptor, Tag(3), BOUNDS)
    }

    #[test]
    fn the_last_block_is_on_the_device_and_the_next_is_not() {
        assert_eq!(
            parsed(sys::UBLK_IO_OP_WRITE, 8184, 8),
            Ok(Request {
                tag: Tag(3),
                op: Op::Write,
                lba: Lba(8184),
                sectors: 8,
                durability: Durability::Later
            })
        );
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_WRITE, 8184, 16),
            Err(Refusal::Range { .. })
        ));
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_READ, u64::MAX - 7, 8),
            Err(Refusal::Range { .. })
        ));
    }

    #[test]
    fn half_a_block_and_no_block_are_refused() {
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_READ, 4, 8),
            Err(Refusal::Range { .. })
        ));
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_READ, 8, 4),
            Err(Refusal::Range { .. })
        ));
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_DISCARD, 8, 0),
            Err(Refusal::Range { .. })
        ));
    }

    #[test]
    fn a_transfer_is_limited_and_a_discard_is_not() {
        assert!(matches!(
            parsed(sys::UBLK_IO_OP_READ, 0, 1032),
            Err(Refusal::Length { .. })
        ));
        assert!(parsed(sys::UBLK_IO_OP_DISCARD, 0, 8192).is_ok());
    }

    #[test]
    fn fua_counts_on_writes_and_not_on_reads() {
        let durability =
            |op| parsed(op | sys::UBLK_IO_F_FUA, 0, 8).map(|request| request.durability);
        assert_eq!(durability(sys::UBLK_IO_OP_WRITE), Ok(Durability::Now));
        assert_eq!(
            durability(sys::UBLK_IO_OP_WRITE_ZEROES),
            Ok(Durability::Now)
        );
        assert_eq!(durability(sys::UBLK_IO_OP_READ), Ok(Durability::Later));
    }

    #[test]
    fn nounmap_is_seen_where_the_driver_puts_it() {
        let op =
            |flags| parsed(sys::UBLK_IO_OP_WRITE_ZEROES | flags, 0, 8).map(|request| request.op);
        assert_eq!(
            op(sys::UBLK_IO_F_NOUNMAP),
            Ok(Op::WriteZeroes(Unmap::Forbidden))
        );
        assert_eq!(op(0), Ok(Op::WriteZeroes(Unmap::Allowed)));
    }

    #[test]
    fn a_flush_is_known_by_its_operation_alone() {
        let flush = parsed(sys::UBLK_IO_OP_FLUSH | sys::UBLK_IO_F_FUA, 5, 3);
        assert_eq!(
            flush,
            Ok(Request {
                tag: Tag(3),
                op: Op::Flush,
                lba: Lba(0),
                sectors: 0,
                durability: Durability::Later
            })
        );
    }

    #[test]
    fn every_other_operation_is_refused_by_number() {
        for number in (0..=0xff).filter(|number| ![0, 1, 2, 3, 5].contains(number)) {
            assert_eq!(parsed(number, 0, 8), Err(Refusal::Operation { number }));
        }
    }
}
