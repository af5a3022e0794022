//! Creates a server's data directory, by `initdb` or as a copy of what it created, and the three configuration files.
//!
//! `initdb` differs between versions (see `src/bin/initdb/initdb.c`): `--nosync` until 9.6,
//! `--no-sync` since 10, `-N` in all. Likewise `-n` in all, which keeps the directory when `initdb`
//! fails: it shows which shared memory to remove. Checksums are on by default since 18, which added
//! `--no-data-checksums`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use crate::account::{OsAccount, SHORT_TIMEOUT};
use crate::data_template::{DataTemplate, has_usual_settings};
use crate::error::ServerError;
use crate::installation::Installation;
use crate::server::{SUPERUSER, ServerConfig};
use crate::settings;

/// `initdb` writes 40 MB, which can take a while on a busy disk.
const INITDB_TIMEOUT: Duration = Duration::from_mins(2);
/// The password file exists only while `initdb` runs.
const INITDB: &str =
    "umask 077; cat >password && \"$@\" --pwfile=password; status=$?; rm -f password; exit $status";

/// The parameters of a new data directory.
pub(crate) struct Cluster<'a> {
    pub installation: &'a Installation,
    pub config: &'a ServerConfig,
    pub account: &'a OsAccount,
    /// The server's directory, which contains the data directory `data`.
    pub base: &'a Path,
    pub socket_directory: PathBuf,
    pub port: u16,
    /// The superuser's, which only TCP asks for.
    pub password: &'a str,
}

impl Cluster<'_> {
    /// Creates the data directory and writes the configuration.
    pub(crate) fn create(&self) -> Result<(), ServerError> {
        let arguments = self.initdb_arguments();
        let is_usual = !self.config.tcp && self.config.initdb_options.is_empty();
        let template =
            is_usual.then(|| DataTemplate::of(self.installation, &arguments, self.account));
        if let Some(template) = template.flatten() {
            if !template.unpack(self.account, self.base) {
                let printed = self.run_initdb(&arguments)?;
                if has_usual_settings(&printed) {
                    template.pack(self.account, self.base);
                }
            }
        } else {
            self.run_initdb(&arguments)?;
        }
        self.configure()
    }

    /// Returns what it printed.
    fn run_initdb(&self, arguments: &[OsString]) -> Result<Vec<u8>, ServerError> {
        let program = self.installation.program("initdb");
        let data = self.base.join("data");
        let mut command = vec![program.as_os_str(), OsStr::new("-D"), data.as_os_str()];
        command.extend(arguments.iter().map(OsString::as_os_str));
        let failed = |source| ServerError::Program {
            program: program.clone(),
            user: self.account.user.name.clone(),
            source,
            barrier: self
                .account
                .barrier(&program)
                .or_else(|| self.account.barrier(self.base)),
        };
        let output = self
            .account
            .run_script(
                INITDB,
                &command,
                self.base,
                self.password.as_bytes(),
                INITDB_TIMEOUT,
            )
            .map_err(failed)?;
        // The shell's exit codes for a program that is missing or not executable.
        if let Some(126 | 127) = output.status.code() {
            return Err(failed(std::io::Error::other(words(&output))));
        }
        if !output.status.success() {
            let mut words = words(&output);
            if words.is_empty() {
                words = output.status.to_string();
            }
            let version = self.installation.version.clone();
            let error = ServerError::Initdb {
                version,
                words: words.clone(),
            };
            return Err(error.or_disk_full(self.base, &words));
        }
        Ok(output.stdout)
    }

    /// Except where the data directory is.
    fn initdb_arguments(&self) -> Vec<OsString> {
        let version = &self.installation.version;
        let mut arguments = Vec::new();
        let method = settings::password_method(version);
        arguments.extend(
            [
                "-U",
                SUPERUSER,
                "-N",
                "-n",
                "--locale=C",
                "-E",
                "UTF8",
                "--auth-local=peer",
            ]
            .map(OsString::from),
        );
        arguments.push(format!("--auth-host={method}").into());
        match self.config.data_checksums {
            Some(true) => arguments.push("--data-checksums".into()),
            // Before 18 there is no such option, and checksums are off by default.
            Some(false) if version.series().major() >= 18 => {
                arguments.push("--no-data-checksums".into());
            }
            _ => {}
        }
        arguments.extend(self.config.initdb_options.iter().map(OsString::from));
        arguments
    }

    /// Writes the configuration; also needed before a restart on another port.
    pub(crate) fn configure(&self) -> Result<(), ServerError> {
        let version = &self.installation.version;
        let data = self.base.join("data");
        let tcp = self.config.tcp;
        let mut settings = self.config.settings.clone();
        if self.config.tls {
            self.write_certificate(&data)?;
            settings
                .entry("ssl".to_owned())
                .or_insert_with(|| "on".to_owned());
        }
        let own = settings::configuration(&settings, &self.socket_directory, self.port, tcp)?;
        let files = [
            ("pgassay.conf", own),
            ("pg_hba.conf", settings::host_rules(version, SUPERUSER, tcp)),
            ("pg_ident.conf", settings::user_map(self.account, SUPERUSER)),
        ];
        for (name, text) in files {
            let path = data.join(name);
            self.account
                .write_file(&path, &text)
                .map_err(|source| ServerError::writing("write", &path, source))?;
        }
        self.include(&data)
    }

    /// Writes a certificate and its key under the server's default names.
    fn write_certificate(&self, data: &Path) -> Result<(), ServerError> {
        let certificate = data.join("server.crt");
        let failed = |error: rcgen::Error| {
            ServerError::writing("create", &certificate, std::io::Error::other(error))
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(failed)?;
        let files = [
            (certificate.clone(), made.cert.pem()),
            (data.join("server.key"), made.signing_key.serialize_pem()),
        ];
        for (path, text) in files {
            self.account
                .write_file(&path, &text)
                .map_err(|source| ServerError::writing("write", &path, source))?;
        }
        Ok(())
    }

    /// Includes our file at the end of `postgresql.conf`; errors in a setting then show its line.
    fn include(&self, data: &Path) -> Result<(), ServerError> {
        let script = "grep -q '^include .pgassay.conf.' postgresql.conf || \
                      echo \"include 'pgassay.conf'\" >>postgresql.conf";
        let output = self
            .account
            .run_script(script, &[], data, b"", SHORT_TIMEOUT)
            .map_err(|source| {
                ServerError::writing("write", &data.join("postgresql.conf"), source)
            })?;
        if output.status.success() {
            return Ok(());
        }
        let words = words(&output);
        let source = std::io::Error::other(words.clone());
        let error = ServerError::writing("write", &data.join("postgresql.conf"), source);
        Err(error.or_disk_full(self.base, &words))
    }
}

/// A program's standard error or, if that is empty, its standard output.
fn words(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = if errors.trim().is_empty() {
        String::from_utf8_lossy(&output.stdout)
    } else {
        errors
    };
    text.trim().to_owned()
}
