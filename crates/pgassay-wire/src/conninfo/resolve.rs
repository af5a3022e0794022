//! Resolves a request to a [`Target`]: service, environment, password file, defaults.
//!
//! Source: `conninfo_add_defaults` and `connectOptions2` (`pqConnectOptions2`) in `fe-connect.c`.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::environment::FILE_BYTES_MAX;
use super::keywords::{self, KEYWORDS, SETTINGS, Support};
use super::methods::Methods;
use super::options::ConninfoOptions;
use super::target::{Address, SessionAttributes, SslMode, Target, TargetHost};
use super::{ConninfoError, Environment, Request, encryption, files, locale};
use crate::password::Password;

const DEFAULT_PORT: &str = "5432";
/// libpq waits at least two seconds, because a timeout of one second could pass almost immediately.
const CONNECT_TIMEOUT_MIN_S: u32 = 2;

pub(super) fn resolve(
    request: &Request,
    environment: &dyn Environment,
) -> Result<Target, ConninfoError> {
    let mut options = ConninfoOptions::default();
    for (name, value) in &request.options {
        options.set_default(name, value.clone());
    }
    let may_supply = |name: &str| !(request.has_all_passwords && keywords::has_secret_value(name));
    add_service(&mut options, environment, may_supply)?;
    add_variables(&mut options, environment, may_supply)?;
    // Older than sslmode, but libpq still honors it.
    if environment
        .variable("PGREQUIRESSL")
        .is_some_and(|value| value.starts_with('1'))
    {
        options.set_default("sslmode", "require".into());
    }
    reject_unsupported(&options)?;
    let user = options
        .get("user")
        .map(str::to_owned)
        .or_else(|| environment.user())
        .ok_or(ConninfoError::NoUser)?;
    let database = options.get("dbname");
    let database = database.or(request.fallback_database.as_deref());
    let mut target = Target {
        database: database.unwrap_or(&user).to_owned(),
        user,
        ssl_mode: encryption::ssl_mode(&options)?,
        channel_binding: encryption::channel_binding(&options)?,
        methods: Methods::parse(options.get("require_auth").unwrap_or_default())?,
        session_attributes: session_attributes(&options)?,
        balance_hosts: options.choice(
            "load_balance_hosts",
            false,
            &[("disable", false), ("random", true)],
            "disable or random",
        )?,
        settings: settings(&options, request, environment)?,
        connect_timeout_s: options
            .number("connect_timeout")?
            .filter(|&seconds| seconds > 0)
            .map(|seconds| seconds.max(CONNECT_TIMEOUT_MIN_S)),
        keepalives: options.number("keepalives")? != Some(0),
        keepalives_idle_s: options.number("keepalives_idle")?.unwrap_or(0),
        keepalives_interval_s: options.number("keepalives_interval")?.unwrap_or(0),
        keepalives_count: options.number("keepalives_count")?.unwrap_or(0),
        tcp_user_timeout_ms: options.number("tcp_user_timeout")?.unwrap_or(0),
        ..Target::default()
    };
    let password_file = if request.has_all_passwords {
        None
    } else {
        password_file(&mut target, &options, environment)
    };
    add_hosts(&mut target, &options, environment, password_file.as_deref())?;
    let is_tcp = |host: &TargetHost| matches!(host.address, Address::Tcp { .. });
    let uses_tls = target.ssl_mode != SslMode::Disable && target.hosts.iter().any(is_tcp);
    target.tls = encryption::settings(&options, environment, target.ssl_mode, uses_tls)?;
    Ok(target)
}

/// Adds a service's options that it may supply, if a service is specified.
fn add_service(
    options: &mut ConninfoOptions,
    environment: &dyn Environment,
    may_supply: impl Fn(&str) -> bool,
) -> Result<(), ConninfoError> {
    let named = options.given("service").map(str::to_owned);
    let Some(name) = named.or_else(|| environment.variable("PGSERVICE")) else {
        return Ok(());
    };
    let explicit = options.given("servicefile").map(PathBuf::from);
    let explicit = explicit.or_else(|| environment.variable("PGSERVICEFILE").map(PathBuf::from));
    let named_file = explicit.clone();
    let user_file = explicit.or_else(|| Some(environment.home()?.join(".pg_service.conf")));
    let system = environment.variable("PGSYSCONFDIR");
    let system_file = system.map(|directory| PathBuf::from(directory).join("pg_service.conf"));
    for path in [user_file, system_file].into_iter().flatten() {
        let shown = path.display().to_string();
        let read = environment.read(&path, FILE_BYTES_MAX);
        let file = read.map_err(|error| ConninfoError::Unreadable {
            path: shown.clone(),
            error,
        })?;
        let Some(file) = file else {
            if named_file == Some(path) {
                return Err(ConninfoError::NoServiceFile { path: shown });
            }
            continue;
        };
        if let Some(found) = files::service(&shown, &file.text, &name)? {
            for (option, value) in found.into_iter().filter(|(option, _)| may_supply(option)) {
                options.set_default(&option, value);
            }
            return Ok(());
        }
    }
    Err(ConninfoError::ServiceNotFound { name })
}

/// Adds the options that environment variables may supply.
fn add_variables(
    options: &mut ConninfoOptions,
    environment: &dyn Environment,
    may_supply: impl Fn(&str) -> bool,
) -> Result<(), ConninfoError> {
    for keyword in KEYWORDS.iter().filter(|keyword| may_supply(keyword.name)) {
        let Some(name) = keyword.variable else {
            continue;
        };
        if let Some(value) = environment.variable(name) {
            options.set_default(keyword.name, value);
        } else if environment.is_garbled(name) && options.get(keyword.name).is_none() {
            return Err(ConninfoError::Value {
                option: name,
                value: "…".into(),
                expected: "text in UTF-8",
            });
        }
    }
    Ok(())
}

/// Rejects options that promise something that is not implemented.
fn reject_unsupported(options: &ConninfoOptions) -> Result<(), ConninfoError> {
    let unsupported = |option, value: &str, reason| {
        Err(ConninfoError::Unsupported {
            option,
            value: value.into(),
            reason,
        })
    };
    for keyword in KEYWORDS
        .iter()
        .filter(|keyword| keyword.used == Support::Refused)
    {
        // An empty value, and a passphrase without TLS, have no effect.
        let is_idle = |value: &str| {
            let is_plain = options.get("sslmode") == Some("disable");
            keyword.name == "sslpassword" && (value.is_empty() || is_plain)
        };
        if options.get(keyword.name).is_some_and(|it| !is_idle(it)) {
            let shown = if keywords::has_secret_value(keyword.name) {
                "***"
            } else {
                "…"
            };
            let reason = match keyword.name {
                "sslpassword" => "remove the passphrase of the key with \"openssl pkey\"",
                _ => "pgassay does not implement this option",
            };
            return unsupported(keyword.name, shown, reason);
        }
    }
    match options.given("gssencmode") {
        None | Some("disable" | "prefer") => {}
        Some(value) => {
            return unsupported("gssencmode", value, "pgassay does not implement GSSAPI");
        }
    }
    Ok(())
}

fn session_attributes(options: &ConninfoOptions) -> Result<SessionAttributes, ConninfoError> {
    options.choice(
        "target_session_attrs",
        SessionAttributes::Any,
        &[
            ("any", SessionAttributes::Any),
            ("read-write", SessionAttributes::ReadWrite),
            ("read-only", SessionAttributes::ReadOnly),
            ("primary", SessionAttributes::Primary),
            ("standby", SessionAttributes::Standby),
            ("prefer-standby", SessionAttributes::PreferStandby),
        ],
        "any, read-write, read-only, primary, standby or prefer-standby",
    )
}

/// Returns the settings in the start-up message, as `build_startup_packet` sends them.
fn settings(
    options: &ConninfoOptions,
    request: &Request,
    environment: &dyn Environment,
) -> Result<Vec<(String, String)>, ConninfoError> {
    let mut settings = Vec::new();
    let mut add = |name: &str, value: Option<&str>| {
        settings.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    };
    add("options", options.get("options"));
    let fallback = options
        .get("fallback_application_name")
        .or(request.fallback_application_name.as_deref());
    add(
        "application_name",
        options.get("application_name").or(fallback),
    );
    let encoding = match options.get("client_encoding") {
        Some("auto") => Some(locale::encoding(environment)?),
        named => named,
    };
    add("client_encoding", encoding);
    for (variable, setting) in SETTINGS {
        let value = environment.variable(variable);
        // The word "default" selects the server's own setting.
        add(
            setting,
            value
                .as_deref()
                .filter(|value| !value.eq_ignore_ascii_case("default")),
        );
    }
    Ok(settings)
}

/// Splits a comma-separated list; an unset value is an empty list.
fn list(value: Option<&str>) -> Vec<&str> {
    value
        .map(|value| value.split(',').collect())
        .unwrap_or_default()
}

fn add_hosts(
    target: &mut Target,
    options: &ConninfoOptions,
    environment: &dyn Environment,
    password_file: Option<&str>,
) -> Result<(), ConninfoError> {
    let names = list(options.get("host"));
    let addresses = list(options.get("hostaddr"));
    let ports = list(options.get("port"));
    let count = names.len().max(addresses.len()).max(1);
    let wrong = |option, count, hosts| {
        Err(ConninfoError::Count {
            option,
            count,
            hosts,
        })
    };
    if !addresses.is_empty() && !names.is_empty() && addresses.len() != names.len() {
        return wrong("hostaddr", addresses.len(), names.len());
    }
    if ports.len() > 1 && ports.len() != count {
        return wrong("port", ports.len(), count);
    }
    for index in 0..count {
        let name = names.get(index).copied().unwrap_or("");
        let address = addresses.get(index).copied().unwrap_or("");
        let port = ports.get(if ports.len() == 1 { 0 } else { index }).copied();
        let port = port.filter(|port| !port.is_empty()).unwrap_or(DEFAULT_PORT);
        let default_directory = environment.socket_directory();
        let resolved = address_of(name, address, port, &default_directory)?;
        let looked_up = match name {
            "" if address.is_empty() => "localhost",
            "" => address,
            name if name == default_directory => "localhost",
            name => name,
        };
        let entry = files::PasswordLine {
            host: looked_up,
            port: port.trim(),
            database: &target.database,
            user: &target.user,
        };
        let of_file = password_file.and_then(|text| files::password(text, &entry));
        if of_file
            .as_ref()
            .is_some_and(|it| it.contains(char::REPLACEMENT_CHARACTER))
        {
            let warning = "a password in the password file is not text in UTF-8";
            target.warnings.push(warning.into());
        }
        let password = options.get("password").map(str::to_owned).or(of_file);
        target.hosts.push(TargetHost {
            address: resolved,
            password: password.map(Password::new),
        });
    }
    Ok(())
}

fn address_of(
    name: &str,
    address: &str,
    port: &str,
    default_directory: &str,
) -> Result<Address, ConninfoError> {
    let number = port.trim().parse().ok().filter(|&port: &u16| port > 0);
    let port = number.ok_or_else(|| ConninfoError::Value {
        option: "port",
        value: port.into(),
        expected: "a number from 1 to 65535",
    })?;
    if address.is_empty() {
        return Ok(match name {
            "" => Address::Unix {
                directory: default_directory.into(),
                port,
            },
            path if path.starts_with(['/', '@']) => Address::Unix {
                directory: path.into(),
                port,
            },
            host => Address::Tcp {
                host: host.into(),
                address: None,
                port,
            },
        });
    }
    let parsed: IpAddr = address.parse().map_err(|_| ConninfoError::Value {
        option: "hostaddr",
        value: address.into(),
        expected: "an IPv4 or IPv6 address",
    })?;
    Ok(Address::Tcp {
        host: name.into(),
        address: Some(parsed),
        port,
    })
}

/// Returns the text of the password file, unless a password is already specified or others can
/// access the file, that is, if any of the six lowest bits of its mode is set.
fn password_file(
    target: &mut Target,
    options: &ConninfoOptions,
    environment: &dyn Environment,
) -> Option<String> {
    if options.get("password").is_some() {
        return None;
    }
    let given = options.get("passfile").map(PathBuf::from);
    let path = given.or_else(|| Some(environment.home()?.join(".pgpass")))?;
    match environment.read(&path, FILE_BYTES_MAX) {
        Ok(Some(file)) if file.mode.trailing_zeros() >= 6 => Some(file.text),
        Ok(Some(_)) => {
            target.warnings.push(format!(
                "password file \"{}\" has group or world access and is ignored; \
                 permissions should be u=rw (0600) or less",
                path.display()
            ));
            None
        }
        Ok(None) => None,
        Err(error) => {
            let path = path.display();
            target.warnings.push(match error.kind() {
                io::ErrorKind::InvalidInput => {
                    format!("password file \"{path}\" is not a plain file and is ignored")
                }
                _ => format!("password file \"{path}\" is ignored: {error}"),
            });
            None
        }
    }
}
