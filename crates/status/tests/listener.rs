//! The listener as its peers see it: proper clients, browsers under a foreign name, and malicious peers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, ready};
use nacre_status::{
    Answer, Collector, DescriptorEncoder, Encoder, ListenError, Listener, Metrics, Options, Part, Section,
    StatusCode,
};

/// A part whose health can be set, with a page that shows its query.
struct Example {
    error: Option<&'static str>,
}

#[derive(Debug)]
struct Seven;

impl Collector for Seven {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        Encoder::new(encoder).counter("things", "Things", 7)
    }
}

impl Part for Example {
    fn metrics(&self) -> BoxFuture<'_, Result<Metrics, String>> {
        ready(Ok(Metrics { prefix: "example", source: Box::new(Seven) })).boxed()
    }

    fn health(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(self.error.map_or(Ok(()), |error| Err(error.to_owned()))).boxed()
    }

    fn section(&self) -> BoxFuture<'_, Result<Section, String>> {
        let mut section = Section { title: "example".to_owned(), ..Section::default() };
        section.row("things", 7);
        ready(Ok(section)).boxed()
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/echo"]
    }

    fn page(&self, _path: &'static str, query: &str) -> BoxFuture<'_, Answer> {
        ready(Answer::text(StatusCode::OK, query)).boxed()
    }
}

fn start(error: Option<&'static str>) -> Listener {
    let hosts = vec!["status.example".to_owned()];
    let options = Options { address: "127.0.0.1:0".to_owned(), open: false, hosts };
    Listener::start(&options, vec![Arc::new(Example { error })]).unwrap()
}

/// Sends bytes, and returns everything received until the connection ends.
fn exchange(listener: &Listener, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    // The peer may have answered and closed before everything was sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(listener: &Listener, host: &str, path: &str) -> String {
    exchange(listener, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
}

#[track_caller]
fn check(answer: &str, status: u16, body: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert_eq!(answer.split_once("\r\n\r\n").unwrap().1, body, "{answer}");
}

#[test]
fn parts_show_their_metrics_their_health_and_their_pages() {
    let listener = start(None);
    check(&get(&listener, "localhost", "/healthz"), 200, "ok\n");
    check(&get(&listener, "localhost", "/echo?a=b&c"), 200, "a=b&c\n");
    check(&get(&listener, "localhost", "/nothing"), 404, "there is no such page\n");
    assert!(get(&listener, "localhost", "/metrics").contains("\nexample_things_total 7\n"));
    let plain = get(&listener, "localhost", "/metrics");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    let open = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";
    let open = exchange(&listener, open);
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    let page = get(&listener, "localhost", "/");
    assert!(page.contains("<tr><th>things</th><td>7</td></tr>") && page.contains("href=\"/echo\""), "{page}");
    let ill = start(Some("it is ill"));
    check(&get(&ill, "localhost", "/healthz"), 503, "it is ill\n");
}

#[test]
fn a_page_loads_nothing_and_is_neither_kept_nor_embedded() {
    let listener = start(None);
    for (host, path) in [("localhost", "/"), ("localhost", "/metrics"), ("evil.example", "/")] {
        let answer = get(&listener, host, path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        for field in [
            "content-security-policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            "cross-origin-resource-policy: same-origin",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.lines().any(|line| line == field), "{field} is not in\n{head}");
        }
        for part in ["<script", "http://", "https://", "url(", "@import", " src="] {
            assert!(path != "/" || !body.contains(part), "{part} is in\n{body}");
        }
    }
}

#[test]
fn a_head_is_a_get_without_its_body() {
    let listener = start(None);
    let got = get(&listener, "localhost", "/echo?abc");
    let head = exchange(&listener, b"HEAD /echo?abc HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check(&head, 200, "");
    assert!(got.contains("content-length: 4\r\n") && head.contains("content-length: 4\r\n"), "{head}");
}

#[test]
fn whoever_asks_under_a_foreign_name_learns_nothing() {
    let listener = start(None);
    for host in ["evil.example", "localhost.evil.example", "192.0.2.1", "[::2]:80", ""] {
        let answer = get(&listener, host, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 421 "), "{host}: {answer}");
        assert!(!answer.contains("things"), "{host}: {answer}");
    }
    // The host in the request line counts, too, and so does every `Host` field.
    let absolute = b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(exchange(&listener, absolute).starts_with("HTTP/1.1 421 "));
    let twice = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
    assert!(exchange(&listener, twice).starts_with("HTTP/1.1 400 "));
    assert!(exchange(&listener, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    // A check of before HTTP/1.1 names none, and one that does is bound by it.
    let old = exchange(&listener, b"GET /healthz HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200 ") && old.ends_with("\r\n\r\nok\n"), "{old}");
    let old = exchange(&listener, b"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 421 "), "{old}");
    for host in ["localhost", "127.0.0.1:1", "[::1]", "Status.Example", &listener.address().to_string()] {
        check(&get(&listener, host, "/healthz"), 200, "ok\n");
    }
}

#[test]
fn nothing_but_looking_is_answered() {
    let listener = start(None);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let request =
            format!("{method} /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}");
        let answer = exchange(&listener, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(answer.contains("\r\nallow: GET, HEAD\r\n"), "{method}: {answer}");
    }
}

#[test]
fn heads_without_end_are_cut_off() {
    let listener = start(None);
    let field = format!("GET / HTTP/1.1\r\nHost: localhost\r\nLong: {}", "x".repeat(1 << 20));
    assert!(!exchange(&listener, field.as_bytes()).contains(" 200 "));
    let many = (0..1000).map(|number| format!("N{number}: x\r\n")).collect::<String>();
    let fields = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    assert!(!exchange(&listener, fields.as_bytes()).contains(" 200 "));
    check(&get(&listener, "localhost", "/healthz"), 200, "ok\n");
}

#[test]
fn those_who_say_nothing_hold_nobody_up_for_long() {
    let listener = start(None);
    // More than are served at a time: later connections get a place when the time of these is over.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    check(&get(&listener, "localhost", "/healthz"), 200, "ok\n");
    // The first of them were disconnected, and none of them was answered.
    for mut stream in silent {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    }
}

#[test]
fn other_machines_are_let_in_only_by_an_explicit_word() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let closed = Options { address: address.to_owned(), ..Options::default() };
        let error = Listener::start(&closed, Vec::new()).err().unwrap();
        assert!(matches!(error, ListenError::Open { .. }), "{error}");
        assert!(error.to_string().contains("--http-open"), "{error}");
    }
    let open = Options { address: "0.0.0.0:0".to_owned(), open: true, ..Options::default() };
    assert!(Listener::start(&open, Vec::new()).is_ok());
    let first = start(None);
    let taken = Options { address: first.address().to_string(), ..Options::default() };
    assert!(Listener::start(&taken, Vec::new()).err().unwrap().is_taken());
}
