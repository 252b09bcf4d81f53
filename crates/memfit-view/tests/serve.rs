//! Tests of the server's access control.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use memfit_view::Server;
use support::{PLAIN, view};

struct Address {
    host: String,
    token: String,
}

fn serve() -> Address {
    let server = Server::bind(view(&PLAIN, false), 0).expect("a port is free");
    let url = server.url();
    std::thread::spawn(move || server.run());
    let (host, token) =
        url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("an address");
    Address { host: host.to_owned(), token: token.trim_end_matches('/').to_owned() }
}

fn ask(address: &Address, request: &str) -> String {
    let mut stream = TcpStream::connect(&address.host).expect("the server listens");
    stream.write_all(request.as_bytes()).expect("it takes a request");
    let mut answer = Vec::new();
    // A server that refuses early may close the connection before everything was read.
    let _ended = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: &Address, path: &str, host: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

#[test]
fn only_who_knows_the_token_and_names_loopback_gets_the_page() {
    let address = serve();
    let Address { host, token } = &address;
    let port = host.rsplit(':').next().expect("a port");
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    assert!(token.len() >= 22, "a token of 128 bits");
    let (page, wrong) = (format!("/{token}/"), "A".repeat(token.len()));
    let cases: &[(&str, &str, &str)] = &[
        (&page, host, "200"),
        (&page, &format!("localhost:{port}"), "200"),
        (&format!("{page}section/0"), host, "200"),
        (&format!("{page}section/999999"), host, "404"),
        (&format!("{page}section/-1"), host, "404"),
        (&format!("{page}../section/0"), host, "404"),
        (&format!("/{token}"), host, "404"),
        ("/", host, "403"),
        (&format!("/{wrong}/"), host, "403"),
        (&format!("/{token}A/"), host, "403"),
        (&page, "evil.example", "421"),
        (&page, &format!("evil.example:{port}"), "421"),
        (&page, "127.0.0.1", "421"),
        (&page, &format!("{host}\r\nHost: evil.example"), "421"),
    ];
    for (path, host, status) in cases {
        let answer = get(&address, path, host);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} for {host}: {answer:.80}");
        if *status != "200" {
            assert!(!answer.contains(token), "a refusal tells the token");
        }
    }
}

#[test]
fn other_requests_are_refused() {
    let address = serve();
    let Address { host, token } = &address;
    let many = "X: y\r\n".repeat(20_000);
    let cases = [
        (format!("POST /{token}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"), "405"),
        (format!("GET /{token}/ HTTP/1.1\r\n\r\n"), "421"),
        (format!("GET /{token}/\r\nHost: {host}\r\n\r\n"), "405"),
        (format!("GET /{token}/ HTTP/1.1\r\nHost: {host}\r\n{many}\r\n"), "400"),
    ];
    for (request, status) in cases {
        let answer = ask(&address, &request);
        // A request that is too long may be answered by a reset without content.
        assert!(
            answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:.60}: {answer:.80}"
        );
    }
    assert!(get(&address, &format!("/{token}/"), host).contains("connect-src 'self'"), "it still answers");
}

#[test]
fn answers_are_kept_to_this_page() {
    let address = serve();
    let answer = get(&address, &format!("/{}/", address.token), &address.host);
    for header in
        ["X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer", "Cache-Control: no-store"]
    {
        assert!(answer.contains(header), "{header} is missing");
    }
    assert!(!answer.contains("Access-Control"), "no other page may read it");
}

#[test]
fn a_port_that_is_taken_is_an_error_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it has an address").port();
    let error = Server::bind(view(&PLAIN, false), port).expect_err("the port is taken");
    assert!(error.hint().contains("-o report.html"), "{error}");
}
