//! HTTP server for one view, on loopback, protected by an unguessable token.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::{View, served_page};

/// Maximum size of a request.
const MAX_REQUEST_BYTES: u64 = 16 << 10;
/// Timeout for receiving a request, and for sending a response.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent responses; a browser uses six.
const MAX_CONNECTIONS: usize = 32;

/// Error while the server starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No port is available.
    #[error("no port on 127.0.0.1 can be listened on")]
    Listen(#[source] io::Error),
    /// The operating system returned no random numbers.
    #[error("no random token can be made")]
    Token,
}

impl ServeError {
    /// Advice for the user.
    pub const fn hint(&self) -> &'static str {
        "`-o report.html` writes the same page to a file, which needs no server"
    }
}

/// Server that listens, and has not responded yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    view: View,
    page: String,
    token: String,
    address: SocketAddr,
    busy: AtomicUsize,
}

impl Server {
    /// Listens on the given port of loopback, or on a free one for 0.
    pub fn bind(view: View, port: u16) -> Result<Self, ServeError> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|_| ServeError::Token)?;
        let token = URL_SAFE_NO_PAD.encode(random);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(ServeError::Listen)?;
        let address = listener.local_addr().map_err(ServeError::Listen)?;
        let page = served_page(&view);
        Ok(Self {
            listener,
            shared: Arc::new(Shared { view, page, token, address, busy: AtomicUsize::new(0) }),
        })
    }

    /// URL of the page.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.shared.address, self.shared.token)
    }

    /// Serves requests until the process ends.
    pub fn run(&self) {
        for stream in self.listener.incoming().flatten() {
            let shared = Arc::clone(&self.shared);
            if shared.busy.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                shared.busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            std::thread::spawn(move || {
                // A client that disconnected does not need the response.
                let _gone = shared.answer(stream);
                shared.busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// Response.
enum Answer<'a> {
    Page(&'a str),
    Section(&'a [u8]),
    Refused(&'static str),
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> io::Result<()> {
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
        let answer =
            if whole { self.decide(&first, host.as_deref()) } else { Answer::Refused("400 Bad Request") };
        write_answer(stream, &answer)
    }

    fn decide(&self, request: &str, host: Option<&str>) -> Answer<'_> {
        // Another host name indicates DNS rebinding: a website whose name was pointed to loopback.
        let port = self.address.port();
        let known = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        if !host.is_some_and(|host| known.iter().any(|known| known.eq_ignore_ascii_case(host))) {
            return Answer::Refused("421 Misdirected Request");
        }
        let mut words = request.split(' ');
        let (Some("GET"), Some(path), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Answer::Refused("405 Method Not Allowed");
        };
        if !version.starts_with("HTTP/1.") {
            return Answer::Refused("505 HTTP Version Not Supported");
        }
        let mut parts = path.strip_prefix('/').unwrap_or_default().splitn(2, '/');
        if !parts.next().is_some_and(|token| constant_time_eq(token, &self.token)) {
            return Answer::Refused("403 Forbidden");
        }
        match parts.next() {
            Some("") => Answer::Page(&self.page),
            Some(rest) => {
                let number = rest.strip_prefix("section/").and_then(|number| number.parse::<usize>().ok());
                match number.and_then(|number| self.view.sections().get(number)) {
                    Some(section) => Answer::Section(section),
                    None => Answer::Refused("404 Not Found"),
                }
            }
            None => Answer::Refused("404 Not Found"),
        }
    }
}

/// Compares in constant time.
fn constant_time_eq(one: &str, other: &str) -> bool {
    one.len() == other.len()
        && one.bytes().zip(other.bytes()).fold(0, |differences, (one, other)| differences | (one ^ other))
            == 0
}

fn write_answer(mut to: impl Write, answer: &Answer<'_>) -> io::Result<()> {
    let (status, kind, body): (_, _, &[u8]) = match answer {
        Answer::Page(page) => ("200 OK", "text/html; charset=utf-8", page.as_bytes()),
        Answer::Section(section) => ("200 OK", "application/octet-stream", section),
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
