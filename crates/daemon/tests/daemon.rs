//! A complete daemon, as its users see it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use nacre_daemon::{Daemon, ServerOptions};

fn options(folder: &std::path::Path) -> ServerOptions {
    ServerOptions {
        store: Some(format!("file:{}", folder.join("data").display()).parse().unwrap()),
        listen: vec!["127.0.0.1:0".into(), format!("unix:{}", folder.join("socket").display()).into()],
        open: true,
        http: Some("127.0.0.1:0".to_owned()),
        ..Default::default()
    }
}

fn http(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let store = nacre::open(&format!("nacre://{}", daemon.addresses()[0])).unwrap().blocking();
    let version = store.object("o").unwrap().write(0, "kept").unwrap();
    daemon.stop().unwrap();
    let error = store.object("o").unwrap().read(0..4).unwrap_err();
    assert_eq!(error.kind, nacre::ErrorKind::Unavailable, "{error}");

    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let store = nacre::open(&daemon.addresses()[1].to_string()).unwrap().blocking();
    let read = store.object("o").unwrap().read(0..10).unwrap();
    assert_eq!((&read.data[..], read.version), (&b"kept"[..], version));
    daemon.stop().unwrap();
    assert!(!folder.path().join("socket").exists());
}

#[test]
fn what_tells_of_leases_after_a_restart_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let store = nacre::open(&daemon.addresses()[1].to_string()).unwrap().blocking();
    let mark = store.object("nacre/leases").unwrap();
    // Whatever a client writes into it, it is there.
    mark.write(0, "overwritten").unwrap();
    let error = mark.remove().unwrap_err();
    assert_eq!(error.kind, nacre::ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("\"nacre/leases\" tells the server"), "{error}");
    assert_eq!(&mark.read(0..4).unwrap().data[..], b"over");
    assert!(store.object("nacre/lease").unwrap().remove().is_ok(), "another object");
    daemon.stop().unwrap();
}

#[test]
fn metrics_tell_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let store = nacre::open(&daemon.addresses()[1].to_string()).unwrap().blocking();
    let object = store.object("o").unwrap();
    let mut watch = object.watch().unwrap();
    let version = object.write(0, "abc").unwrap();
    object.write(0, "abd").unwrap();
    for expected in [version, version + 1] {
        assert!(
            matches!(watch.next(), Some(Ok(nacre::watch::Event::Changed { version })) if version == expected)
        );
    }
    assert!(matches!(object.write_if(0, "abe", version).unwrap(), nacre::Written::Refused(_)));
    let address = daemon.http_address().unwrap();
    let (status, text) = http(address, "/metrics");
    assert_eq!(status, 200);
    for line in [
        "nacre_connections 1.0",
        "nacre_requests_total{kind=\"write\",outcome=\"done\"} 2",
        "nacre_requests_total{kind=\"conditional_write\",outcome=\"refused\"} 1",
        "nacre_request_latency_seconds_count 4",
        "nacre_request_latency_seconds_bucket{le=\"+Inf\"} 4",
        "nacre_store_objects 1.0",
        "nacre_store_read_only 0.0",
        "nacre_watch_watches 1.0",
        "nacre_watch_events_total 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing from:\n{text}");
    }
    assert_eq!(http(address, "/healthz"), (200, "ok\n".to_owned()));
    let (status, page) = http(address, "/");
    assert!(status == 200 && page.contains("<td>2 done, 0 refused, 0 failed</td>"), "{page}");
    assert_eq!(http(address, "/nothing").0, 404);
    daemon.stop().unwrap();
}

#[test]
fn the_administration_answers_over_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let store = nacre::open(&format!("nacre://{}", daemon.addresses()[0])).unwrap().blocking();
    store.object("o").unwrap().write(0, vec![7; 1 << 20]).unwrap();
    let info = store.info().unwrap();
    assert_eq!(info.len(), 1);
    assert_eq!(info[0].server, daemon.addresses()[0].to_string());
    assert_eq!(info[0].report["objects"], 1);
    let scrub = store.scrub(|_| ()).unwrap();
    assert_eq!(scrub[0].report["findings"].as_array().unwrap().len(), 0);
    assert!(scrub[0].report["bytes"].as_u64().unwrap() >= 1 << 20);
    assert_eq!(store.compact().unwrap()[0].report["objects"], 1);
    daemon.stop().unwrap();
}

#[test]
fn contended_regions_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        store: Some("mem:".parse().unwrap()),
        region_statistics: true,
        ..options(folder.path())
    };
    let daemon = Daemon::start(&options).unwrap();
    let address = daemon.addresses()[1].to_string();
    let refusals: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let store = nacre::open(&address).unwrap().blocking();
                scope.spawn(move || {
                    let object = store.object("hot").unwrap();
                    let increment = |old: &[u8]| vec![old[0].wrapping_add(1)];
                    (0..50).map(|_| object.update(3..4, increment).unwrap().refusals).sum::<u64>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let store = nacre::open(&address).unwrap().blocking();
    assert_eq!(store.object("hot").unwrap().read(3..4).unwrap().data[0], 200);
    let report = &store.regions(10).unwrap()[0].report;
    assert_eq!(report["attempts"], 200 + refusals);
    assert_eq!(report["failures"], refusals);
    let region = &report["regions"][0];
    assert_eq!((&region["object"], &region["offset"], &region["len"]), (&"hot".into(), &3.into(), &1.into()));
    assert_eq!((&region["attempts"], &region["failures"]), (&report["attempts"], &report["failures"]));
    store.clear_regions().unwrap();
    assert_eq!(store.regions(10).unwrap()[0].report["regions"].as_array().unwrap().len(), 0);
    daemon.stop().unwrap();
}

#[test]
fn two_servers_cannot_have_the_same_folder_or_address() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(folder.path())).unwrap();
    let elsewhere = ServerOptions { listen: vec!["127.0.0.1:0".into()], ..options(folder.path()) };
    let error = Daemon::start(&elsewhere).err().unwrap();
    assert!(error.message.contains("is open in another process"), "{error}");
    // No store is created for a daemon that cannot listen.
    let new = folder.path().join("new");
    let store: Option<nacre::Uri> = Some(format!("file:{}", new.display()).parse().unwrap());
    for address in daemon.addresses() {
        let listen = vec![address.to_os_string()];
        let taken = ServerOptions { store: store.clone(), listen, ..options(folder.path()) };
        let error = Daemon::start(&taken).err().unwrap();
        assert!(error.message.starts_with(&format!("cannot listen on {address}: ")), "{error}");
        assert!(error.message.ends_with("choose another address with --listen"), "{error}");
    }
    // Below those that the system gives to others meanwhile.
    let mut ports = (0..20_000).map(|number| 10_000 + ((std::process::id() + number) % 20_000) as u16);
    let port = ports.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], port));
    let socket = |name: &str| format!("unix:{}/{name}", folder.path().display());
    for (listen, why) in [
        (vec![socket(&"x".repeat(120))], "too long for a socket"),
        (vec![socket("s"), socket("./s")], "is in the way"),
        (vec![free.to_string(), free.to_string()], "is in the way"),
        (vec![free.to_string(), format!("0.0.0.0:{}", free.port())], "is in the way"),
    ] {
        let listen = listen.into_iter().map(Into::into).collect();
        let wrong = ServerOptions { store: store.clone(), listen, ..options(folder.path()) };
        let error = Daemon::start(&wrong).err().unwrap();
        assert!(error.message.contains(why) && error.kind == nacre::ErrorKind::Invalid, "{error}");
    }
    let unprotected = ServerOptions { store, open: false, ..elsewhere };
    let error = Daemon::start(&unprotected).err().unwrap();
    assert!(error.message.contains("without a cluster key"), "{error}");
    assert!(!new.exists());
    daemon.stop().unwrap();
}
