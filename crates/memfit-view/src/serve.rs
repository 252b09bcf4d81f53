//! Pages of one view on loopback, protected by an unguessable token.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::loopback::{Answer, Loopback, Pages};
use crate::{View, served_page};

/// Error while the server starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No port is available.
    #[error("cannot listen on any port of 127.0.0.1")]
    Listen(#[source] io::Error),
    /// The operating system returned no random numbers.
    #[error("cannot create a random token")]
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
    loopback: Loopback,
    shown: Arc<Shown>,
}

/// View with its page, under a token.
#[derive(Debug)]
struct Shown {
    view: View,
    page: String,
    token: String,
}

impl Server {
    /// Listens on the given port of loopback, or on a free one for 0.
    pub fn bind(view: View, port: u16) -> Result<Self, ServeError> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|_| ServeError::Token)?;
        let token = URL_SAFE_NO_PAD.encode(random);
        let loopback = Loopback::bind(port).map_err(ServeError::Listen)?;
        let page = served_page(&view);
        Ok(Self { loopback, shown: Arc::new(Shown { view, page, token }) })
    }

    /// URL of the page.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.loopback.address(), self.shown.token)
    }

    /// Serves requests until the process ends.
    pub fn run(&self) {
        self.loopback.run(&self.shown);
    }
}

impl Pages for Shown {
    fn answer(&self, path: &str) -> Answer<'_> {
        let mut parts = path.strip_prefix('/').unwrap_or_default().splitn(2, '/');
        if !parts.next().is_some_and(|token| constant_time_eq(token, &self.token)) {
            return Answer::Refused("403 Forbidden");
        }
        match parts.next() {
            Some("") => Answer::Kept { kind: "text/html; charset=utf-8", body: self.page.as_bytes() },
            Some(rest) => {
                let number = rest.strip_prefix("section/").and_then(|number| number.parse::<usize>().ok());
                match number.and_then(|number| self.view.sections().get(number)) {
                    Some(section) => Answer::Kept { kind: "application/octet-stream", body: section },
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
