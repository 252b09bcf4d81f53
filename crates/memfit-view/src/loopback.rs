//! HTTP server on the loopback interface.
//!
//! Refuses requests for other host names, as DNS rebinding would send, and requests that a browser makes for
//! a page of another origin, other than links to this server. Tools that are not browsers are served.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum size of a request.
const MAX_REQUEST_BYTES: u64 = 16 << 10;
/// Timeout for receiving a request, and for sending a response.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent responses; a browser uses six.
const MAX_CONNECTIONS: usize = 32;

/// Content that a server offers.
pub trait Pages: Send + Sync + 'static {
    /// Answers a `GET` of a path, which begins with a slash.
    fn answer(&self, path: &str) -> Answer<'_>;
}

/// Response.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Borrowed content.
    Kept {
        /// Content type.
        kind: &'static str,
        /// Body.
        body: &'a [u8],
    },
    /// Content generated for this request.
    Made {
        /// Content type.
        kind: &'static str,
        /// Body.
        body: Vec<u8>,
    },
    /// Status line of a refusal: `404 Not Found`.
    Refused(&'static str),
}

/// Listening server.
#[derive(Debug)]
pub struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
}

impl Loopback {
    /// Listens on a port of loopback, or on a free one for 0.
    pub fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until the process ends.
    pub fn run<P: Pages>(&self, pages: &Arc<P>) {
        let busy = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming().flatten() {
            if busy.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (pages, busy, port) = (Arc::clone(pages), Arc::clone(&busy), self.address.port());
            std::thread::spawn(move || {
                // A client that disconnected does not need the response.
                let _gone = respond(&*pages, port, stream);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

fn respond(pages: &impl Pages, port: u16, stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?.take(MAX_REQUEST_BYTES)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut head = Head::default();
    let mut whole = false;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            whole = true;
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            head.add(name, value.trim());
        }
    }
    let answer = match requested(&first, &head, port) {
        _ if !whole => Answer::Refused("400 Bad Request"),
        Ok(path) => pages.answer(path),
        Err(refused) => Answer::Refused(refused),
    };
    write_answer(stream, &answer)
}

/// Headers of a request that decide if it is answered.
#[derive(Default)]
struct Head {
    host: Option<String>,
    /// `Sec-Fetch-Site`: relation of the page that makes the request to this server.
    site: Option<String>,
    /// `Sec-Fetch-Mode`: `navigate` for a link.
    mode: Option<String>,
}

impl Head {
    fn add(&mut self, name: &str, value: &str) {
        let header = match name.to_ascii_lowercase().as_str() {
            "host" => &mut self.host,
            "sec-fetch-site" => &mut self.site,
            "sec-fetch-mode" => &mut self.mode,
            _ => return,
        };
        // Duplicate headers may be interpreted differently by different readers.
        *header = Some(if header.is_some() { String::new() } else { value.to_owned() });
    }

    /// Returns `true` if a page of another origin fetches the answer, as a script or an image.
    fn is_foreign(&self) -> bool {
        let own = self.site.as_deref().is_none_or(|site| matches!(site, "same-origin" | "none"));
        !own && self.mode.as_deref() != Some("navigate")
    }
}

/// Path of a request line, or the status with which the request is refused.
fn requested<'a>(request: &'a str, head: &Head, port: u16) -> Result<&'a str, &'static str> {
    // Another host name indicates DNS rebinding: a website whose name was pointed to loopback.
    let known = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let host = head.host.as_deref();
    if !host.is_some_and(|host| known.iter().any(|known| known.eq_ignore_ascii_case(host))) {
        return Err("421 Misdirected Request");
    }
    if head.is_foreign() {
        return Err("403 Forbidden");
    }
    let mut words = request.split(' ');
    let (Some("GET"), Some(path), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("405 Method Not Allowed");
    };
    if !version.starts_with("HTTP/1.") {
        return Err("505 HTTP Version Not Supported");
    }
    Ok(path)
}

fn write_answer(mut to: impl Write, answer: &Answer<'_>) -> io::Result<()> {
    let (status, kind, body): (_, _, &[u8]) = match answer {
        Answer::Kept { kind, body } => ("200 OK", *kind, body),
        Answer::Made { kind, body } => ("200 OK", *kind, body),
        Answer::Refused(status) => (*status, "text/plain; charset=utf-8", status.as_bytes()),
    };
    write!(
        to,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n\r\n",
        body.len()
    )?;
    to.write_all(body)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_pages_links_and_tools_are_answered() {
        let answer = |headers: &[(&str, &str)]| {
            let mut head = Head::default();
            for (name, value) in headers {
                head.add(name, value);
            }
            requested("GET /data HTTP/1.1", &head, 9000)
        };
        let own = ("Host", "127.0.0.1:9000");
        assert_eq!(answer(&[own]), Ok("/data"), "curl and Prometheus send nothing else");
        assert_eq!(answer(&[("host", "LOCALHOST:9000")]), Ok("/data"));
        for host in [&[("Host", "evil.example:9000")][..], &[("Host", "127.0.0.1")], &[], &[own, own]] {
            assert_eq!(answer(host), Err("421 Misdirected Request"), "{host:?}");
        }
        let from = |site, mode| answer(&[own, ("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode)]);
        for site in ["same-origin", "none"] {
            assert_eq!(from(site, "cors"), Ok("/data"));
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(from(site, "navigate"), Ok("/data"), "a link");
            for mode in ["cors", "no-cors", "websocket"] {
                assert_eq!(from(site, mode), Err("403 Forbidden"), "{site} {mode}");
            }
        }
    }
}
