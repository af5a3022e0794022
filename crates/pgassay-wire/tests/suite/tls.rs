//! TLS with a real server: every mode against servers that support, do not support or require TLS,
//! with valid and invalid certificates; compared with psql if it is installed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use pgassay_test_support::{BareServer, Certificates, wait_until};
use pgassay_wire::conninfo::{Endpoint, Request, Target};
use pgassay_wire::{ExchangeError, cancel};

use crate::connecting::{ProcessEnvironment, compare, connect, ours, psql_major};

const HBA: &str = "\
local all all trust
hostssl all only_ssl 127.0.0.1/32 trust
hostnossl all only_plain 127.0.0.1/32 trust
hostssl all certified 127.0.0.1/32 cert
host all scram 127.0.0.1/32 scram-sha-256
host all md5 127.0.0.1/32 md5
host all tester 127.0.0.1/32 trust
";
const MODES: [&str; 6] = [
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
];

/// A server that supports TLS, its certificates, and an empty home directory.
struct TlsFixture {
    server: BareServer,
    certificates: Certificates,
    home: tempfile::TempDir,
    _files: tempfile::TempDir,
}

impl TlsFixture {
    fn new() -> Option<Self> {
        let files = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(files.path());
        let names = [
            "server.crt",
            "server.key",
            "root.crt",
            "elsewhere.crt",
            "elsewhere.key",
            "common_name.crt",
            "common_name.key",
            "server384.crt",
            "server384.key",
            "server25519.crt",
            "server25519.key",
            "expired.crt",
            "expired.key",
            "alone.crt",
            "alone.key",
        ];
        let given: Vec<_> = names.iter().map(|name| certificates.path(name)).collect();
        let server = BareServer::start_with(HBA, &given)?;
        let place = Self {
            server,
            certificates,
            home: tempfile::tempdir().unwrap(),
            _files: files,
        };
        let mut local = place.local();
        for sql in [
            "create role only_ssl login; create role only_plain login; create role certified login",
            "create role scram login password 'secret'",
            "set password_encryption = md5; create role md5 login password 'secret'",
        ] {
            local.query(sql).unwrap();
        }
        Some(place)
    }

    fn local(&self) -> pgassay_wire::Exchange<Box<dyn crate::connecting::Stream>> {
        let socket = self.server.socket_directory();
        let text = format!(
            "host={} port={} dbname=postgres user=tester",
            socket.display(),
            self.server.port()
        );
        connect(&text, &self.around()).unwrap()
    }

    fn around(&self) -> ProcessEnvironment {
        ProcessEnvironment {
            variables: vec![("PGPASSWORD".into(), "secret".into())],
            home: self.home.path().to_owned(),
        }
    }

    /// Returns a connection string for this server; `{name}` in `more` becomes the file's path.
    fn text(&self, more: &str) -> String {
        let port = self.server.port();
        let mut text = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user=tester {more}"
        );
        while let Some((before, rest)) = text.clone().split_once('{') {
            let (name, after) = rest.split_once('}').unwrap();
            text = format!("{before}{}{after}", self.certificates.path(name).display());
        }
        text
    }

    /// Makes the server use another certificate.
    fn show(&self, name: &str) {
        let mut local = self.local();
        for (setting, ending) in [("ssl_cert_file", "crt"), ("ssl_key_file", "key")] {
            local
                .query(&format!("alter system set {setting} = '{name}.{ending}'"))
                .unwrap();
        }
        local.query("select pg_reload_conf()").unwrap();
        wait_until("the server reloads", || {
            self.local().value("show ssl_key_file").unwrap() == Some(format!("{name}.key"))
        });
    }
}

/// Summarizes a result: connected with TLS, without TLS, or the error.
fn summarize(came: &Result<String, String>) -> String {
    match came {
        Ok(who) => {
            if who.contains(" t ") {
                "tls".into()
            } else {
                "plain".into()
            }
        }
        Err(error) => error.clone(),
    }
}

/// A stream that records what is written to it.
struct RecordedStream {
    stream: TcpStream,
    written: Vec<u8>,
}

impl Read for RecordedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for RecordedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(bytes)?;
        self.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Cancels what the backend of `key` executes; returns the bytes that were sent.
fn cancel_recorded(target: &Target, key: pgassay_wire::BackendKey, with_tls: bool) -> Vec<u8> {
    let address = target.hosts[0].address.clone();
    let pgassay_wire::conninfo::Address::Tcp { port, .. } = address else {
        panic!("the target is reached over TCP");
    };
    let tcp = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let endpoint = Endpoint {
        address,
        host: 0,
        tcp: Some(tcp),
    };
    let mut recorded = RecordedStream {
        stream: TcpStream::connect(tcp).unwrap(),
        written: Vec::new(),
    };
    cancel(&mut recorded, target, &endpoint, with_tls, key).unwrap();
    recorded.written
}

#[test]
fn a_cancel_request_is_encrypted_if_the_connection_is() {
    // `CANCEL_REQUEST_CODE`.
    const CANCEL: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];
    let Some(place) = TlsFixture::new() else {
        return;
    };
    let asleep = "select count(*) from pg_stat_activity \
                  where query = 'select pg_sleep(600)' and state = 'active'";
    for (more, with_tls) in [
        ("sslmode=disable", false),
        ("sslmode=require", true),
        ("sslmode=require sslnegotiation=direct", true),
    ] {
        let text = place.text(more);
        let request = Request::new().database(&text).unwrap();
        let target = request.resolve(&place.around()).unwrap();
        let mut exchange = connect(&text, &place.around()).unwrap();
        assert_eq!(exchange.is_protected(), with_tls);
        let key = exchange.backend().unwrap();
        let (sent, result) = std::thread::scope(|scope| {
            let canceling = scope.spawn(|| {
                wait_until("the query runs", || {
                    place.local().value(asleep).unwrap().as_deref() == Some("1")
                });
                cancel_recorded(&target, key, with_tls)
            });
            let result = exchange.query("select pg_sleep(600)");
            (canceling.join().unwrap(), result)
        });
        match result {
            Err(ExchangeError::Server(error)) => assert_eq!(error.sqlstate, "57014"),
            other => panic!("not canceled: {other:?}"),
        }
        let is_readable = sent.windows(4).any(|bytes| bytes == CANCEL);
        assert_eq!(is_readable, !with_tls, "{more}");
    }
}

#[test]
fn ssl_modes_use_tls_as_documented() {
    let Some(place) = TlsFixture::new() else {
        return;
    };
    for (more, expected) in [
        ("sslmode=disable", "plain"),
        ("sslmode=allow", "plain"),
        ("sslmode=prefer", "tls"),
        ("sslmode=require", "tls"),
        ("sslmode=verify-ca sslrootcert={root.crt}", "tls"),
        ("sslmode=verify-full sslrootcert={root.crt}", "tls"),
        (
            "sslmode=verify-full sslrootcert={other.crt}",
            "not signed by any trusted",
        ),
        ("sslmode=require user=scram channel_binding=require", "tls"),
        (
            "sslmode=require user=scram channel_binding=require require_auth=scram-sha-256",
            "tls",
        ),
        (
            "sslmode=disable user=scram channel_binding=require",
            "SSL not in use",
        ),
        (
            "sslmode=require user=md5 channel_binding=require",
            "not supported by server's",
        ),
        (
            "sslmode=require user=tester channel_binding=require",
            "without channel binding",
        ),
        (
            "sslmode=require user=md5 require_auth=!md5",
            "server requested a hashed password",
        ),
        ("sslmode=require sslnegotiation=direct", "tls"),
        ("sslmode=require ssl_max_protocol_version=TLSv1.2", "tls"),
        ("sslmode=require ssl_min_protocol_version=TLSv1.3", "tls"),
        ("sslmode=require sslsni=0", "tls"),
        (
            "sslmode=verify-ca sslrootcert={root.crt} sslcrl={none.crl}",
            "tls",
        ),
        (
            "sslmode=verify-ca sslrootcert={root.crt} sslcrl={server.crl}",
            "revoked",
        ),
        (
            "sslmode=require user=certified sslcert={client.crt} sslkey={client.key}",
            "tls",
        ),
        (
            "sslmode=require user=certified sslcert={client.crt} sslkey={client.key} sslcertmode=disable",
            "requires a valid client certificate",
        ),
        (
            "sslmode=require sslcert={client.crt} sslkey={nowhere.key}",
            "but not private key file",
        ),
        (
            "sslmode=require sslcert={client.crt} sslkey={server.crt}",
            "group or world access",
        ),
    ] {
        let came = ours(&place.text(more), &place.around());
        assert!(summarize(&came).contains(expected), "{more}: {came:?}");
    }
}

#[test]
fn large_queries_and_answers_pass_through_tls() {
    let Some(place) = TlsFixture::new() else {
        return;
    };
    for version in ["TLSv1.2", "TLSv1.3"] {
        let more = format!(
            "sslmode=require ssl_min_protocol_version={version} ssl_max_protocol_version={version}"
        );
        let mut exchange = connect(&place.text(&more), &place.around()).unwrap();
        assert!(exchange.is_protected());
        let spoken = exchange.value("select version from pg_stat_ssl where pid = pg_backend_pid()");
        assert_eq!(spoken.unwrap().as_deref(), Some(version));
        let long = "x".repeat(3_000_000);
        let back = exchange
            .value(&format!("select '{long}'"))
            .unwrap()
            .unwrap();
        assert_eq!(back.len(), long.len());
        let rows = exchange
            .query("select repeat('y', g % 1000) from generate_series(1, 20000) g")
            .unwrap();
        assert_eq!(rows[0].rows.len(), 20_000);
        exchange.query("create temp table t (a text)").unwrap();
        let mut left = 200;
        exchange
            .copy_in("copy t from stdin", |out| {
                out.extend_from_slice("abc\n".repeat(20_000).as_bytes());
                left -= 1;
                left > 0
            })
            .unwrap();
        assert_eq!(
            exchange.value("select count(*) from t").unwrap().unwrap(),
            "4000000"
        );
    }
}

/// Additions to a connection string, and whether connecting succeeds.
const CASES: &[(&str, bool)] = &[
    (
        "sslmode=require user=certified sslcert={client.crt} sslkey={client.key}",
        true,
    ),
    (
        "sslmode=require user=certified sslcert={stranger.crt} sslkey={stranger.key}",
        false,
    ),
    ("sslmode=require user=certified", false),
    (
        "sslmode=require user=tester sslcert={client.crt} sslkey={client.key}",
        true,
    ),
    (
        "sslmode=require user=tester sslcert={client.crt} sslkey={stranger.key}",
        false,
    ),
    (
        "sslmode=prefer user=tester sslcert={client.crt} sslkey={stranger.key}",
        true,
    ),
    (
        "sslmode=require user=tester sslcert={nowhere.crt} sslkey={nowhere.key}",
        true,
    ),
    (
        "sslmode=require user=tester sslcert={client.crt} sslkey={nowhere.key}",
        false,
    ),
    (
        "sslmode=require user=tester sslcert={client.crt} sslkey={server.crt}",
        false,
    ),
    ("sslmode=verify-ca sslrootcert={nowhere.crt}", false),
    ("sslmode=require sslrootcert={nowhere.crt}", true),
    ("sslmode=require sslrootcert={server.key}", false),
    (
        "sslmode=verify-ca sslrootcert={root.crt} sslcrl={none.crl}",
        true,
    ),
    (
        "sslmode=verify-ca sslrootcert={root.crt} sslcrl={server.crl}",
        false,
    ),
    (
        "sslmode=verify-ca sslrootcert={root.crt} sslcrl={nowhere.crl}",
        true,
    ),
    ("sslmode=require user=scram channel_binding=require", true),
    ("sslmode=require user=scram channel_binding=disable", true),
    ("sslmode=disable user=scram channel_binding=require", false),
    ("sslmode=disable user=scram channel_binding=prefer", true),
    ("sslmode=require user=md5 channel_binding=require", false),
    ("sslmode=require user=tester channel_binding=require", false),
    ("sslmode=require user=scram password=wrong", false),
    ("sslmode=require ssl_max_protocol_version=TLSv1.2", true),
    ("sslmode=require ssl_min_protocol_version=tlsv1.3", true),
    ("sslmode=require ssl_min_protocol_version=TLSv1.4", false),
    (
        "sslmode=require ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2",
        false,
    ),
];

#[test]
fn modes_and_certificates_against_the_real_psql() {
    let Some(_) = psql_major("TLS against the real psql") else {
        return;
    };
    let Some(place) = TlsFixture::new() else {
        return;
    };
    let Some(plain) = BareServer::start_with_tcp("host all tester 127.0.0.1/32 trust\n") else {
        return;
    };
    let around = place.around();
    for mode in MODES {
        for user in ["tester", "only_ssl", "only_plain", "scram", "nobody"] {
            compare(&place.text(&format!("sslmode={mode} user={user}")), &around).ok();
        }
        for (user, roots) in [
            ("tester", "root"),
            ("tester", "other"),
            ("only_plain", "root"),
        ] {
            let more = format!("sslmode={mode} user={user} sslrootcert={{{roots}.crt}}");
            compare(&place.text(&more), &around).ok();
        }
        let text = format!(
            "host=localhost hostaddr=127.0.0.1 port={} dbname=postgres user=tester sslmode={mode}",
            plain.port()
        );
        let came = compare(&text, &around);
        assert_eq!(
            came.is_ok(),
            ["disable", "allow", "prefer"].contains(&mode),
            "{mode}: {came:?}"
        );
        // Unix sockets never use TLS, whatever the mode requires.
        let socket = plain.socket_directory();
        let text = format!(
            "host={} port={} dbname=postgres user=tester sslmode={mode}",
            socket.display(),
            plain.port()
        );
        compare(&text, &around).ok();
    }
    for (more, works) in CASES {
        let came = compare(&place.text(more), &around);
        assert_eq!(came.is_ok(), *works, "{more}: {came:?}");
    }
}

#[test]
fn certificates_of_other_kinds_against_the_real_psql() {
    let Some(_) = psql_major("certificates against the real psql") else {
        return;
    };
    let Some(place) = TlsFixture::new() else {
        return;
    };
    let around = place.around();
    let check = |certificate: &str, more: &str, works: bool| {
        let came = compare(&place.text(more), &around);
        assert_eq!(came.is_ok(), works, "{certificate} {more}: {came:?}");
    };
    for (certificate, roots, with_ca, with_name) in [
        ("elsewhere", "root.crt", true, false),
        ("common_name", "root.crt", true, true),
        ("server384", "root.crt", true, true),
        ("expired", "root.crt", false, false),
        // A certificate that is itself trusted.
        ("alone", "alone.crt", true, true),
        ("alone", "root.crt", false, false),
        ("server", "alone.crt", false, false),
        ("elsewhere", "other.crt", false, false),
    ] {
        place.show(certificate);
        check(certificate, "sslmode=require", true);
        check(
            certificate,
            &format!("sslmode=verify-ca sslrootcert={{{roots}}}"),
            with_ca,
        );
        check(
            certificate,
            &format!("sslmode=verify-full sslrootcert={{{roots}}}"),
            with_name,
        );
        check(
            certificate,
            "sslmode=require user=scram channel_binding=require",
            true,
        );
    }
    // An unspecified host name cannot be verified.
    place.show("server");
    let port = place.server.port();
    for (host, works) in [
        ("host=127.0.0.1", true),
        ("host=localhost", true),
        ("hostaddr=127.0.0.1", false),
        ("host=other.example hostaddr=127.0.0.1", false),
        ("host=LOCALHOST hostaddr=127.0.0.1", true),
        ("host='no name' hostaddr=127.0.0.1", false),
    ] {
        let text = format!(
            "{host} port={port} dbname=postgres user=tester sslmode=verify-full sslrootcert={}",
            place.certificates.path("root.crt").display()
        );
        let came = compare(&text, &around);
        assert_eq!(came.is_ok(), works, "{host}: {came:?}");
    }
}

#[test]
fn a_certificate_of_version_1_is_its_signers() {
    let files = tempfile::tempdir().unwrap();
    let made = Certificates::make(files.path());
    if !made.make_version_1() {
        pgassay_test_support::skip("certificates of version 1", "openssl is not installed");
        return;
    }
    std::fs::copy(made.path("oldroot.crt"), made.path("root.crt")).unwrap();
    let given = ["old.crt", "old.key", "root.crt"].map(|name| made.path(name));
    let Some(server) = BareServer::start_with(HBA, &given) else {
        return;
    };
    let around = ProcessEnvironment {
        variables: Vec::new(),
        home: files.path().to_owned(),
    };
    for (roots, works) in [
        ("oldroot.crt", true),
        // As in psql 15, it does not vouch for itself, because it is not self-signed.
        ("old.crt", false),
        ("other.crt", false),
    ] {
        let text = format!(
            "host=localhost hostaddr=127.0.0.1 port={} dbname=postgres user=tester \
             sslmode=verify-full sslrootcert={}",
            server.port(),
            made.path(roots).display()
        );
        for version in ["TLSv1.2", "TLSv1.3"] {
            let came = ours(
                &format!("{text} ssl_max_protocol_version={version}"),
                &around,
            );
            assert_eq!(came.is_ok(), works, "{roots}: {came:?}");
        }
    }
    // Regression: as the client's, it was said not to match its key; psql connects.
    for (key, works) in [("old.key", true), ("oldroot.key", false)] {
        let text = format!(
            "host=127.0.0.1 port={} dbname=postgres user=tester sslmode=require sslcert={} sslkey={}",
            server.port(),
            made.path("old.crt").display(),
            made.path(key).display()
        );
        let came = ours(&text, &around);
        assert_eq!(came.is_ok(), works, "{key}: {came:?}");
    }
}

#[test]
fn files_in_the_home_directory_against_the_real_psql() {
    let Some(_) = psql_major("TLS by the home directory's files") else {
        return;
    };
    let Some(place) = TlsFixture::new() else {
        return;
    };
    let around = place.around();
    let folder = place.home.path().join(".postgresql");
    std::fs::create_dir(&folder).unwrap();
    let put = |from: &str, to: &str| {
        let from: &Path = &place.certificates.path(from);
        std::fs::copy(from, folder.join(to)).unwrap();
    };
    // An existing file is used even if only TLS is required.
    put("other.crt", "root.crt");
    assert!(compare(&place.text("sslmode=require"), &around).is_err());
    assert_eq!(
        summarize(&compare(&place.text("sslmode=prefer"), &around)),
        "plain"
    );
    put("root.crt", "root.crt");
    assert!(compare(&place.text("sslmode=verify-full"), &around).is_ok());
    put("client.crt", "postgresql.crt");
    assert!(compare(&place.text("sslmode=require user=certified"), &around).is_err());
    put("client.key", "postgresql.key");
    assert!(compare(&place.text("sslmode=require user=certified"), &around).is_ok());
    put("server.crl", "root.crl");
    assert!(compare(&place.text("sslmode=require"), &around).is_err());
}
