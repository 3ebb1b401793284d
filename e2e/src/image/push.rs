//! Pushes layouts by the distribution specification's HTTP API, over plain HTTP/1.1 to a registry of the lab.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::layout::{Descriptor, Layout};

/// A registry by its address.
#[derive(Debug)]
pub struct Registry {
    address: String,
}

/// An answer, without its body.
struct Answer {
    status: u16,
    location: String,
}

impl Registry {
    /// The registry at `host:port`.
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
        }
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&self) -> Result<()> {
        self.expect("GET", "/v2/", "", &mut std::io::empty(), 0, 200)
            .map(drop)
    }

    /// Pushes an image under a name and a tag; blobs that are there already are not sent.
    ///
    /// # Errors
    /// When the registry refuses something.
    pub fn push(&self, layout: &Layout, name: &str, tag: &str) -> Result<()> {
        for blob in layout.blobs()? {
            self.push_blob(layout, name, &blob)
                .with_context(|| format!("push {}", blob.digest))?;
        }
        let (descriptor, bytes) = layout.manifest()?;
        let path = format!("/v2/{name}/manifests/{tag}");
        self.expect(
            "PUT",
            &path,
            &descriptor.media_type,
            &mut bytes.as_slice(),
            descriptor.size,
            201,
        )
        .with_context(|| format!("push {name}:{tag}"))?;
        Ok(())
    }

    fn push_blob(&self, layout: &Layout, name: &str, blob: &Descriptor) -> Result<()> {
        let path = format!("/v2/{name}/blobs/{}", blob.digest);
        if self
            .request("HEAD", &path, "", &mut std::io::empty(), 0)?
            .status
            == 200
        {
            return Ok(());
        }
        let path = format!("/v2/{name}/blobs/uploads/");
        let upload = self
            .expect("POST", &path, "", &mut std::io::empty(), 0, 202)?
            .location;
        let origin = format!("http://{}", self.address);
        let upload = upload.strip_prefix(&origin).unwrap_or(&upload);
        let joint = if upload.contains('?') { '&' } else { '?' };
        let path = format!("{upload}{joint}digest={}", blob.digest);
        let mut file = File::open(layout.blob_path(&blob.digest)?)?;
        self.expect(
            "PUT",
            &path,
            "application/octet-stream",
            &mut file,
            blob.size,
            201,
        )
        .map(drop)
    }

    fn expect(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &mut dyn Read,
        size: u64,
        status: u16,
    ) -> Result<Answer> {
        let answer = self.request(method, path, kind, body, size)?;
        ensure!(
            answer.status == status,
            "{method} {path}: status {}",
            answer.status
        );
        Ok(answer)
    }

    /// One request on a connection of its own.
    fn request(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &mut dyn Read,
        size: u64,
    ) -> Result<Answer> {
        let mut stream = TcpStream::connect(&self.address)
            .with_context(|| format!("connect to registry {}", self.address))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let kind = if kind.is_empty() {
            String::new()
        } else {
            format!("Content-Type: {kind}\r\n")
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{kind}Content-Length: {size}\r\n\r\n",
            self.address
        )?;
        std::io::copy(body, &mut stream)?;
        read_answer(&mut BufReader::new(stream))
    }
}

fn read_answer(stream: &mut impl BufRead) -> Result<Answer> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.with_context(|| format!("{line:?} is not a status line"))?;
    let mut location = String::new();
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("location") {
            value.trim().clone_into(&mut location);
        }
    }
    Ok(Answer { status, location })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_gives_status_and_location() {
        let text = "HTTP/1.1 202 Accepted\r\nlocation: http://r/v2/x?a=b\r\nX: y\r\n\r\nbody";
        let answer = read_answer(&mut text.as_bytes()).expect("an answer");
        assert_eq!(
            (answer.status, answer.location.as_str()),
            (202, "http://r/v2/x?a=b")
        );
    }
}
