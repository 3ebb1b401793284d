//! Header blocks: name and value pairs behind lengths, compressed with a dictionary and a state that lives as long
//! as the connection. Every block must go through the state, also one that is then refused.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::DICTIONARY;
use super::frame::ProtocolError;

/// Most bytes of a block after inflating. The largest that clients send is below 1 KiB.
const MAX_BLOCK: usize = 64 << 10;

/// Most headers in a block.
const MAX_HEADERS: usize = 128;

/// Names (lower case) and values.
pub(in super::super) type Headers = Vec<(String, String)>;

/// Inflates the blocks of one direction.
#[derive(Debug)]
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Inflates and parses one block.
    pub(super) fn headers(&mut self, block: &[u8]) -> Result<Headers, ProtocolError> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        let mut plain = Vec::with_capacity(1024);
        loop {
            if plain.len() == plain.capacity() {
                if plain.len() >= MAX_BLOCK {
                    return Err(ProtocolError("header block too large"));
                }
                plain.reserve(plain.len().max(1024));
            }
            let (read, written) = (self.0.total_in(), plain.len());
            let result = self
                .0
                .decompress_vec(block, &mut plain, FlushDecompress::Sync);
            let consumed = usize::try_from(self.0.total_in() - read).unwrap_or(block.len());
            block = &block[consumed.min(block.len())..];
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(&DICTIONARY)
                        .map_err(|_| ProtocolError("unknown header dictionary"))?;
                }
                Err(_) => return Err(ProtocolError("header block does not inflate")),
                Ok(Status::StreamEnd) => return Err(ProtocolError("header stream ended")),
                Ok(_) if plain.len() < plain.capacity() => {
                    if block.is_empty() {
                        return Ok(plain);
                    }
                    if consumed == 0 && plain.len() == written {
                        return Err(ProtocolError("header block does not inflate"));
                    }
                }
                Ok(_) => {}
            }
        }
    }
}

/// Deflates the blocks of the other direction.
#[derive(Debug)]
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Self {
        let mut compress = Compress::new(Compression::fast(), true);
        // Only fails on a stream that has been used already.
        let _ = compress.set_dictionary(&DICTIONARY);
        Self(compress)
    }

    /// Writes and deflates one block.
    pub(super) fn block(&mut self, headers: &[(String, String)]) -> Result<Vec<u8>, ProtocolError> {
        let plain = write(headers)?;
        let failed = |_| ProtocolError("header block does not deflate");
        let mut rest = plain.as_slice();
        let mut block = Vec::with_capacity(plain.len() + 64);
        loop {
            let read = self.0.total_in();
            self.0
                .compress_vec(rest, &mut block, FlushCompress::Sync)
                .map_err(failed)?;
            let consumed = usize::try_from(self.0.total_in() - read).unwrap_or(rest.len());
            rest = &rest[consumed.min(rest.len())..];
            // Room that is left over means that everything has been flushed.
            if rest.is_empty() && block.len() < block.capacity() {
                return Ok(block);
            }
            block.reserve(plain.len() + 64);
        }
    }
}

fn parse(mut block: &[u8]) -> Result<Headers, ProtocolError> {
    let count = number(&mut block)?;
    if count > MAX_HEADERS {
        return Err(ProtocolError("too many headers"));
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = text(&mut block)?.to_ascii_lowercase();
        headers.push((name, text(&mut block)?));
    }
    if !block.is_empty() {
        return Err(ProtocolError("bytes behind the headers"));
    }
    Ok(headers)
}

fn number(block: &mut &[u8]) -> Result<usize, ProtocolError> {
    let (bytes, rest) = block
        .split_first_chunk()
        .ok_or(ProtocolError("short header block"))?;
    *block = rest;
    usize::try_from(u32::from_be_bytes(*bytes)).map_err(|_| ProtocolError("header too long"))
}

fn text(block: &mut &[u8]) -> Result<String, ProtocolError> {
    let length = number(block)?;
    let (bytes, rest) = block
        .split_at_checked(length)
        .ok_or(ProtocolError("short header block"))?;
    *block = rest;
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtocolError("header is not text"))
}

fn write(headers: &[(String, String)]) -> Result<Vec<u8>, ProtocolError> {
    let length = |length: usize| {
        u32::try_from(length)
            .map(u32::to_be_bytes)
            .map_err(|_| ProtocolError("header too long"))
    };
    let mut block = length(headers.len())?.to_vec();
    for (name, value) in headers {
        for text in [name, value] {
            block.extend_from_slice(&length(text.len())?);
            block.extend_from_slice(text.as_bytes());
        }
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_come_out_as_they_went_in(
            blocks in proptest::collection::vec(
                proptest::collection::vec(("[a-z-]{1,20}", "[ -~]{0,200}"), 0..20), 1..6),
        ) {
            let (mut deflater, mut inflater) = (Deflater::new(), Inflater::new());
            for block in blocks {
                let wire = deflater.block(&block).unwrap();
                prop_assert_eq!(inflater.headers(&wire).unwrap(), block);
            }
        }

        #[test]
        fn no_block_makes_the_inflater_panic(
            blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..4),
        ) {
            let mut inflater = Inflater::new();
            for block in blocks {
                let _ = inflater.headers(&block);
                let _ = parse(&block);
            }
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let bomb = vec![("x".to_owned(), "a".repeat(4 << 20))];
        let wire = Deflater::new().block(&bomb).unwrap();
        assert!(wire.len() < 64 << 10);
        let error = Inflater::new().headers(&wire).unwrap_err();
        assert_eq!(error, ProtocolError("header block too large"));
    }
}
