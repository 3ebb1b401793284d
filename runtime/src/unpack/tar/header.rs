//! Header blocks and PAX records, field by field.

use base64::Engine as _;

use super::BLOCK;

/// What extension headers say about the entry that follows.
#[derive(Debug, Default)]
pub(super) struct Extension {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Extension {
    pub(super) fn apply(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let id = || number().and_then(|n| u32::try_from(n).ok());
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number().ok_or("bad PAX size")?),
            b"uid" => self.uid = Some(id().ok_or("bad PAX uid")?),
            b"gid" => self.gid = Some(id().ok_or("bad PAX gid")?),
            b"mtime" => self.mtime = Some(pax_time(value).ok_or("bad PAX mtime")?),
            _ if key.starts_with(b"GNU.sparse.") => return Err("sparse files are not supported"),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    let value = base64::engine::general_purpose::STANDARD_NO_PAD
                        .decode(value)
                        .map_err(|_| "bad LIBARCHIVE.xattr")?;
                    self.xattrs.push((name.to_vec(), value));
                }
            }
        }
        Ok(())
    }
}

/// A header block.
pub(super) struct Header<'a>(pub(super) &'a [u8; BLOCK]);

impl Header<'_> {
    pub(super) fn kind_byte(&self) -> u8 {
        self.0[156]
    }

    /// Both sums that tar programs have written over the years: of unsigned and of signed bytes.
    pub(super) fn checksum_fits(&self) -> bool {
        let Some(written) = self.number(148, 8) else {
            return false;
        };
        let bytes = self.0.iter().enumerate().map(|(at, byte)| match at {
            148..156 => b' ',
            _ => *byte,
        });
        let unsigned: u64 = bytes.clone().map(u64::from).sum();
        let signed: i64 = bytes.map(|byte| i64::from(byte.cast_signed())).sum();
        unsigned == written || i64::try_from(written) == Ok(signed)
    }

    /// A number in octal, or in base 256 when the first bit is set. None when it is neither or negative.
    pub(super) fn number(&self, at: usize, len: usize) -> Option<u64> {
        let field = &self.0[at..at + len];
        if field[0] & 0x80 != 0 {
            if field[0] != 0x80 {
                return None;
            }
            return field[1..].iter().try_fold(0_u64, |sum, byte| {
                sum.checked_mul(256)?.checked_add(u64::from(*byte))
            });
        }
        let text = until_nul(field);
        let text = std::str::from_utf8(&text).ok()?.trim_matches(' ');
        match text {
            "" => Some(0),
            _ if text.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) => {
                u64::from_str_radix(text, 8).ok()
            }
            _ => None,
        }
    }

    /// A time that cannot be read is the epoch: nothing hangs on it.
    pub(super) fn mtime(&self) -> i64 {
        self.number(136, 12)
            .and_then(|seconds| i64::try_from(seconds).ok())
            .unwrap_or(0)
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        // GNU's own format has other things where POSIX has the prefix.
        if &self.0[257..263] != b"ustar\0" || self.0[345] == 0 {
            return name;
        }
        let mut path = until_nul(&self.0[345..500]);
        path.push(b'/');
        path.extend_from_slice(&name);
        path
    }
}

pub(super) fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

pub(super) fn until_nul(bytes: &[u8]) -> Vec<u8> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    bytes[..end].to_vec()
}

/// Splits "LENGTH KEY=VALUE\n" off; the value may hold any byte.
pub(super) fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(8).position(|byte| *byte == b' ')?;
    let digits = &bytes[..space];
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &bytes[length..]))
}

/// "SECONDS[.FRACTION]", perhaps negative.
fn pax_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.get(..9).unwrap_or(fraction);
    let nanos: u32 = format!("{digits:0<9}").parse().ok()?;
    if text.starts_with('-') && nanos > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}
