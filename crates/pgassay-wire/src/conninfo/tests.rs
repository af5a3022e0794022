//! Tables of connection strings. The expected results come from libpq's own tests
//! (`src/interfaces/libpq/t/001_uri.pl`) and from `psql`.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::*;
use crate::password::Password;

#[derive(Default)]
struct Fake {
    variables: HashMap<&'static str, &'static str>,
    files: HashMap<&'static str, (&'static str, u32)>,
}

/// A variable that is not text.
const GARBLED: &str = "\u{fffd}";
/// The mode of a pipe, with its type.
const PIPE: u32 = 0o010_600;

impl Environment for Fake {
    fn variable(&self, name: &str) -> Option<String> {
        let value = self.variables.get(name).filter(|it| **it != GARBLED);
        value.map(|&value| value.into())
    }
    fn is_garbled(&self, name: &str) -> bool {
        self.variables.get(name) == Some(&GARBLED)
    }
    fn user(&self) -> Option<String> {
        Some("os_user".into())
    }
    fn home(&self) -> Option<PathBuf> {
        Some("/home/me".into())
    }
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Option<FileText>> {
        assert!(max_bytes <= 16 << 20, "{path:?} may be endless");
        let found = self.files.get(path.to_str().unwrap());
        if found.is_some_and(|(_, mode)| *mode == PIPE) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(found.map(|&(text, mode)| FileText {
            text: text.into(),
            mode,
            is_owned_by_root: false,
        }))
    }
}

fn resolve(text: &str, fake: &Fake) -> Result<Target, ConninfoError> {
    Request::new().database(text)?.resolve(fake)
}

/// Formats a target as `user password? database hosts…` in one line, for tables.
fn shown(target: &Target) -> String {
    let hosts = target.hosts.iter().map(|host| {
        let password = host.password.as_ref().map_or("-", Password::reveal);
        match &host.address {
            Address::Unix { directory, port } => format!(" {directory}:{port}={password}"),
            Address::Tcp {
                host,
                address,
                port,
            } => {
                let address = address
                    .map(|address| format!("({address})"))
                    .unwrap_or_default();
                format!(" {host}{address}:{port}={password}")
            }
        }
    });
    format!(
        "{} {}{}",
        target.user,
        target.database,
        hosts.collect::<String>()
    )
}

#[test]
fn strings_and_uris() {
    let table = [
        ("", "os_user os_user /tmp:5432=-"),
        ("plain", "os_user plain /tmp:5432=-"),
        ("host=a port=1 user=u dbname=d password=p", "u d a:1=p"),
        ("  host = 'a b\\'c'  port= 7 ", "os_user os_user a b'c:7=-"),
        ("user=a\\ b\\\\ dbname=''", "a b\\ a b\\ /tmp:5432=-"),
        ("host=/run/pg", "os_user os_user /run/pg:5432=-"),
        ("host=@abstract port=9", "os_user os_user @abstract:9=-"),
        (
            "host=a,b,/c port=1,2,3",
            "os_user os_user a:1=- b:2=- /c:3=-",
        ),
        ("host=a,b port=6", "os_user os_user a:6=- b:6=-"),
        ("host=a,b port=6,", "os_user os_user a:6=- b:5432=-"),
        (
            "hostaddr=127.0.0.1 host=x",
            "os_user os_user x(127.0.0.1):5432=-",
        ),
        ("hostaddr=::1", "os_user os_user (::1):5432=-"),
        ("postgresql://", "os_user os_user /tmp:5432=-"),
        (
            "postgresql://uri-user:secret@host:12345/db",
            "uri-user db host:12345=secret",
        ),
        ("postgres://uri-user@host/db", "uri-user db host:5432=-"),
        (
            "postgresql://host/db?user=uri-user",
            "uri-user db host:5432=-",
        ),
        ("postgresql://host:12345?user=u%20v", "u v u v host:12345=-"),
        ("postgresql://%68ost/db%2Fx", "os_user db/x host:5432=-"),
        (
            "postgresql:///db?host=/path/to/socket/dir",
            "os_user db /path/to/socket/dir:5432=-",
        ),
        ("postgresql://%2Fvar%2Flib/db", "os_user db /var/lib:5432=-"),
        (
            "postgresql://[2001:db8::1234]/db",
            "os_user db 2001:db8::1234:5432=-",
        ),
        ("postgresql://[::1]:12345", "os_user os_user ::1:12345=-"),
        (
            "postgresql://a:1,b:2,[::1]/db",
            "os_user db a:1=- b:2=- ::1:5432=-",
        ),
        ("postgresql://u:p@?host=x", "u u x:5432=p"),
        ("postgresql://@host", "os_user os_user host:5432=-"),
        (
            "postgresql://host?application_name=a%26b",
            "os_user os_user host:5432=-",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(
            shown(&resolve(text, &Fake::default()).expect(text)),
            expected,
            "{text}"
        );
    }
}

#[test]
fn errors_are_specific() {
    let table = [
        ("user=a host", "\"=\""),
        ("user='a", "closing quote"),
        ("uesr=a", "\"uesr\""),
        ("port=x", "\"port\""),
        ("port=70000", "65535"),
        ("host=a,b port=1,2,3", "3 values of \"port\""),
        ("hostaddr=1.2.3.4,::1 host=a", "2 values of \"hostaddr\""),
        ("hostaddr=example", "IPv6"),
        ("connect_timeout=soon", "integer"),
        ("sslmode=sometimes", "verify-ca"),
        ("gssencmode=require", "GSSAPI"),
        ("channel_binding=always", "\"channel_binding\""),
        ("require_auth=md4", "scram-sha-256"),
        ("require_auth=md5,md5", "once"),
        ("require_auth=md5,!password", "either all"),
        ("require_auth=!md5,password", "either all"),
        ("sslnegotiation=indirect", "postgres or direct"),
        ("sslnegotiation=direct", "weak sslmode \"prefer\""),
        ("sslmode=require sslrootcert=system", "use \"verify-full\""),
        ("ssl_min_protocol_version=SSLv3", "TLSv1.2"),
        (
            "ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2",
            "not below",
        ),
        (
            "ssl_min_protocol_version=TLSv1 ssl_max_protocol_version=TLSv1.1",
            "before 1.2",
        ),
        ("sslcertmode=require", "not supported"),
        // Regression: it was ignored, the key not read, and the connection continued without TLS.
        ("sslpassword=x", "sslpassword=*** is not supported"),
        ("sslcertmode=never", "\"sslcertmode\""),
        ("sslsni=2", "0 or 1"),
        ("sslcrldir=/x", "sslcrl"),
        ("target_session_attrs=best", "prefer-standby"),
        ("service=nowhere", "\"nowhere\" not found"),
        // Regression: these were taken for unset, unlike by libpq.
        ("sslmode=''", "\"sslmode\""),
        ("target_session_attrs=''", "\"target_session_attrs\""),
        ("channel_binding=''", "\"channel_binding\""),
        ("gssencmode=''", "gssencmode"),
        ("postgresql:///d?sslmode=", "\"sslmode\""),
        ("service=''", "service \"\" not found"),
        (
            "service=a servicefile=/nosuch",
            "service file \"/nosuch\" not found",
        ),
        ("postgresql://[::1", "\"]\""),
        ("postgresql://[]", "empty"),
        ("postgresql://[::1]z", "after an IPv6"),
        ("postgresql://host/db?x", "no \"=\""),
        ("postgresql://host/db?user=a=b", "second"),
        ("postgresql://host/db?ssl=maybe", "\"ssl\""),
        ("postgresql://%", "hexadecimal"),
        ("postgresql://%0", "hexadecimal"),
        ("postgresql://%zz", "hexadecimal"),
        ("postgresql://%00", "%00"),
        ("postgresql://%ff", "UTF-8"),
    ];
    for (text, expected) in table {
        let error = resolve(text, &Fake::default()).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn later_options_win_then_service_then_environment() {
    let fake = Fake {
        variables: HashMap::from([
            ("PGHOST", "env-host"),
            ("PGPORT", "1"),
            ("PGUSER", "env-user"),
            ("PGDATABASE", "env-db"),
            ("PGSERVICE", "there"),
            ("PGAPPNAME", "env-app"),
            ("PGOPTIONS", "-c geqo=off"),
            ("PGTZ", "UTC"),
            ("PGGEQO", "Default"),
        ]),
        files: HashMap::from([(
            "/home/me/.pg_service.conf",
            (
                "# mine\n[other]\nport=99\n[there]\n port=2\nuser=service-user\n\n[there]\nhost=no",
                0o644,
            ),
        )]),
    };
    let resolved = |request: Request| shown(&request.resolve(&fake).unwrap());
    assert_eq!(resolved(Request::new()), "service-user env-db env-host:2=-");
    let string = || Request::new().database("port=3").unwrap();
    assert_eq!(resolved(string()), "service-user env-db env-host:3=-");
    assert_eq!(
        resolved(string().option("port", "4").unwrap()),
        "service-user env-db env-host:4=-"
    );
    let flag_first = Request::new()
        .option("port", "4")
        .unwrap()
        .database("port=3")
        .unwrap();
    assert_eq!(resolved(flag_first), "service-user env-db env-host:3=-");
    assert!(Request::new().option("prot", "4").is_err());

    let target = Request::new()
        .fallback_application_name("me")
        .resolve(&fake)
        .unwrap();
    let expected = [
        ("options", "-c geqo=off"),
        ("application_name", "env-app"),
        ("timezone", "UTC"),
    ];
    assert_eq!(
        target.settings,
        expected.map(|(name, value)| (name.into(), value.into()))
    );
    let target = Request::new()
        .fallback_application_name("me")
        .resolve(&Fake::default())
        .unwrap();
    assert_eq!(target.settings, [("application_name".into(), "me".into())]);
}

/// Regression: an empty part of a URI hid the user of `-U` and the variables.
#[test]
fn an_empty_user_or_password_of_a_uri_leaves_those_of_options_and_variables() {
    let fake = Fake {
        variables: HashMap::from([("PGUSER", "env-user"), ("PGPASSWORD", "secret")]),
        ..Fake::default()
    };
    for (text, expected) in [
        ("postgresql://@h/db", "env-user db h:5432=secret"),
        ("postgresql://:@h/db", "env-user db h:5432=secret"),
        ("postgresql://u:@h/db", "u db h:5432=secret"),
        ("postgresql://:p@h/db", "env-user db h:5432=p"),
    ] {
        assert_eq!(shown(&resolve(text, &fake).unwrap()), expected, "{text}");
    }
    let request = Request::new().option("user", "given").unwrap();
    let target = request.database("postgresql://@h/db").unwrap();
    assert_eq!(target.resolve(&fake).unwrap().user, "given");
}

/// Regression: the server refused the encoding "auto".
#[test]
fn the_client_encoding_auto_is_that_of_the_locale() {
    for (variables, expected) in [
        (&[][..], Some("SQL_ASCII")),
        (&[("LANG", "C")], Some("SQL_ASCII")),
        (&[("LANG", "C.UTF-8")], Some("UTF8")),
        (&[("LANG", "C"), ("LC_ALL", "en_US.utf8")], Some("UTF8")),
        (
            &[("LC_ALL", ""), ("LC_CTYPE", "de_DE.ISO8859-15@euro")],
            Some("LATIN9"),
        ),
        (&[("LANG", "de_DE")], None),
        (&[("LANG", "xx.unknown")], None),
    ] {
        let fake = Fake {
            variables: variables.iter().copied().collect(),
            ..Fake::default()
        };
        let settings = resolve("client_encoding=auto", &fake).map(|target| target.settings);
        match expected {
            Some(name) => assert_eq!(
                settings.unwrap(),
                [("client_encoding".into(), name.into())],
                "{variables:?}"
            ),
            None => assert!(settings.unwrap_err().to_string().contains("LC_ALL")),
        }
    }
    let fake = Fake {
        variables: HashMap::from([("PGCLIENTENCODING", "auto"), ("LANG", "C.UTF-8")]),
        ..Fake::default()
    };
    let settings = resolve("", &fake).unwrap().settings;
    assert_eq!(settings, [("client_encoding".into(), "UTF8".into())]);
}

#[test]
fn broken_service_files_name_the_line() {
    for (text, expected) in [
        ("[there]\nport", "line 2: expected"),
        ("[there]\n\nservice=x", "line 3: nested"),
        (
            "[there]\nprot=1",
            "line 2: invalid connection option \"prot\"",
        ),
        ("[there]\nldap://x", "LDAP"),
        ("[here]\nnonsense", "\"there\" not found"),
    ] {
        let fake = Fake {
            variables: HashMap::from([("PGSERVICEFILE", "/s")]),
            files: HashMap::from([("/s", (text, 0o644))]),
        };
        let error = resolve("service=there", &fake).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Regression: "definition of service "a" not found" was said of a file that does not exist.
#[test]
fn a_missing_service_file_of_the_environment_is_named() {
    let with = |variables: &[(&'static str, &'static str)]| Fake {
        variables: variables.iter().copied().collect(),
        files: HashMap::from([("/etc/pg/pg_service.conf", ("[a]\nuser=u", 0o644))]),
    };
    let (service, system) = (("PGSERVICE", "a"), ("PGSYSCONFDIR", "/etc/pg"));
    for file in ["/nosuch", ""] {
        let fake = with(&[service, system, ("PGSERVICEFILE", file)]);
        let error = resolve("", &fake).unwrap_err().to_string();
        assert_eq!(error, format!("service file \"{file}\" not found"));
    }
    // Its default need not exist.
    assert_eq!(resolve("", &with(&[service, system])).unwrap().user, "u");
}

#[test]
fn passwords_from_the_file() {
    let text = "#a:*:*:*:comment\na:1:db:u:first\na:*:*:*:any\\:port\\\\\n\
                localhost:5432:*:os_user:local\n\\:\\:1:*:*:*:six\n*:7:*:*:\n";
    let with = |mode| Fake {
        variables: HashMap::from([("PGPASSFILE", "/pass")]),
        files: HashMap::from([("/pass", (text, mode))]),
    };
    for (request, expected) in [
        ("host=a port=1 user=u dbname=db", "u db a:1=first"),
        ("host=a port=2 user=u dbname=db", "u db a:2=any:port\\"),
        ("host=a,b port=1,1 user=u dbname=db", "u db a:1=first b:1=-"),
        ("", "os_user os_user /tmp:5432=local"),
        ("host=/tmp", "os_user os_user /tmp:5432=local"),
        ("host=/else", "os_user os_user /else:5432=-"),
        ("host=::1", "os_user os_user ::1:5432=six"),
        ("host=c port=7", "os_user os_user c:7=-"),
        (
            "host=a port=1 user=u dbname=db password=mine",
            "u db a:1=mine",
        ),
    ] {
        assert_eq!(
            shown(&resolve(request, &with(0o600)).unwrap()),
            expected,
            "{request}"
        );
    }
    let ignored = resolve("host=a", &with(0o640)).unwrap();
    assert_eq!(shown(&ignored), "os_user os_user a:5432=-");
    assert!(
        ignored.warnings[0].contains("0600"),
        "{:?}",
        ignored.warnings
    );
}

/// Regression: the variable was ignored, and the server received another password than that of the file.
#[test]
fn a_password_that_is_not_text_is_said_to_be_none() {
    let fake = Fake {
        variables: HashMap::from([("PGPASSWORD", GARBLED)]),
        ..Fake::default()
    };
    let error = resolve("host=h", &fake).unwrap_err().to_string();
    assert!(error.contains("\"PGPASSWORD\""), "{error}");
    let own = resolve("host=h password=mine", &fake).unwrap();
    assert_eq!(shown(&own), "os_user os_user h:5432=mine");

    let fake = Fake {
        files: HashMap::from([("/home/me/.pgpass", ("*:*:*:*:caf\u{fffd}", 0o600))]),
        ..Fake::default()
    };
    let warnings = resolve("host=h", &fake).unwrap().warnings;
    assert_eq!(
        warnings,
        ["a password in the password file is not text in UTF-8"]
    );
}

#[test]
fn passwords_are_never_displayed() {
    let request = Request::new().conninfo("password=sesame host=a").unwrap();
    let target = request.resolve(&Fake::default()).unwrap();
    let login = target.login(&target.hosts[0], &crate::SaltCache::default());
    assert_eq!(
        login.password.as_ref().map(Password::reveal),
        Some("sesame")
    );
    for text in [
        format!("{request:?}"),
        format!("{target:?}"),
        format!("{login:?}"),
    ] {
        assert!(!text.contains("sesame"), "{text}");
    }
    for broken in [
        "password=sesame port='x",
        "password=sesame port=x",
        "postgres://u:sesame@[x",
        // The "/" ends the host and the port.
        "postgres://u:sesame/x@host:5432/db",
        "postgres://u:sesame",
    ] {
        let error = resolve(broken, &Fake::default()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("sesame"));
    }
}

/// Regression: a server that a study names got the passwords of the user who ran the study.
#[test]
fn a_request_without_looking_up_passwords_has_only_its_own() {
    let fake = Fake {
        variables: HashMap::from([
            ("PGPASSWORD", "of_environment"),
            ("PGPASSFILE", "/pass"),
            ("PGSERVICEFILE", "/services"),
        ]),
        files: HashMap::from([
            ("/pass", ("*:*:*:*:of_file", 0o600)),
            ("/home/me/.pgpass", ("*:*:*:*:of_home", 0o600)),
            (
                "/services",
                (
                    "[prod]\nhost=there\nuser=admin\npassword=of_service\n",
                    0o600,
                ),
            ),
        ]),
    };
    let resolved = |text: &str| {
        let request = Request::new().database(text).unwrap();
        let all = shown(&request.resolve(&fake).unwrap());
        let own = request.without_looking_up_passwords().resolve(&fake);
        (all, shown(&own.unwrap()))
    };
    let ends = |(all, own): (String, String), of_all: &str, of_own: &str| {
        assert!(
            all.ends_with(of_all) && own.ends_with(of_own),
            "{all} {own}"
        );
    };
    ends(resolved("host=h"), "h:5432=of_environment", "h:5432=-");
    ends(
        resolved("service=prod"),
        "there:5432=of_service",
        "there:5432=-",
    );
    ends(resolved("host=h password=mine"), "=mine", "=mine");
    let (_, own) = resolved("service=prod");
    assert!(own.starts_with("admin"), "{own}");
    for (text, expected) in [
        ("host=h passfile=/pass", Some("passfile")),
        ("servicefile=/services service=prod", Some("servicefile")),
        (
            "postgresql://h/db?service=prod",
            Some("service with host, hostaddr or port"),
        ),
        ("service=prod dbname=x", None),
        ("host=h port=1 password=mine", None),
    ] {
        let request = Request::new().database(text).unwrap();
        assert_eq!(request.directs_passwords(), expected, "{text}");
    }
}

/// Regression: a pipe in place of the password file was opened, which waits, and a device read without end.
#[test]
fn a_password_file_that_is_not_a_plain_file_is_ignored_with_a_warning() {
    let fake = Fake {
        files: HashMap::from([("/home/me/.pgpass", ("", PIPE))]),
        ..Fake::default()
    };
    let target = resolve("host=h", &fake).unwrap();
    assert_eq!(
        target.warnings,
        ["password file \"/home/me/.pgpass\" is not a plain file and is ignored"]
    );
    assert_eq!(target.hosts[0].password, None);
}

/// Regression: it was ignored, and revoked certificates would be accepted. And a message ended with its reason twice.
#[test]
fn a_revocation_list_or_a_service_file_that_cannot_be_read_is_an_error() {
    let fake = Fake {
        files: HashMap::from([("/roots", ("", 0o600)), ("/pipe", ("", PIPE))]),
        ..Fake::default()
    };
    let dsn = "host=h sslmode=verify-ca sslrootcert=/roots sslcrl=";
    let debug = |name: &str| format!("{:?}", resolve(&format!("{dsn}{name}"), &fake).unwrap().tls);
    let words = "could not open certificate revocation list file";
    assert!(debug("/pipe").contains(words), "{}", debug("/pipe"));
    assert!(!debug("/none").contains(words), "{}", debug("/none"));
    let error = resolve("service=x servicefile=/pipe", &fake).unwrap_err();
    assert!(std::error::Error::source(&error).is_none(), "{error}");
}
