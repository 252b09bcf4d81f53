//! HTTP server on the loopback interface: reads requests, and refuses those from other websites.

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
    let mut host = None;
    let mut whole = false;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            whole = true;
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("host")
        {
            // Duplicate `Host` headers may be interpreted differently by different readers.
            host = Some(if host.is_some() { String::new() } else { value.trim().to_owned() });
        }
    }
    let answer = match requested(&first, host.as_deref(), port) {
        _ if !whole => Answer::Refused("400 Bad Request"),
        Ok(path) => pages.answer(path),
        Err(refused) => Answer::Refused(refused),
    };
    write_answer(stream, &answer)
}

/// Path of a request line, or the status with which the request is refused.
fn requested<'a>(request: &'a str, host: Option<&str>, port: u16) -> Result<&'a str, &'static str> {
    // Another host name indicates DNS rebinding: a website whose name was pointed to loopback.
    let known = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    if !host.is_some_and(|host| known.iter().any(|known| known.eq_ignore_ascii_case(host))) {
        return Err("421 Misdirected Request");
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
