//! The network between clients and server, written `"unix"`, `"tcp"`, `"tls"`, or `{ delay = "1ms" }`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::HumanDuration;

/// The network between clients and server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// The server's Unix-domain socket.
    #[default]
    Unix,
    /// TCP over loopback, without TLS.
    Tcp,
    /// TLS over TCP over loopback; the server has a self-signed certificate.
    Tls,
    /// TCP through pgassay's relay on loopback, which adds a delay to each round trip, half in each
    /// direction. A delay of 0 measures the relay's own cost.
    Relay {
        /// Delay added to a round trip.
        delay: HumanDuration,
    },
}

impl Network {
    /// The delay that the relay adds to a round trip; `None` without a relay.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Self::Relay { delay } => Some(delay.duration()),
            Self::Unix | Self::Tcp | Self::Tls => None,
        }
    }

    /// Whether the server must listen on TCP.
    pub fn needs_tcp(self) -> bool {
        self != Self::Unix
    }

    /// Whether this is the server's Unix-domain socket, the default.
    // Serde passes the field by reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn is_unix(&self) -> bool {
        *self == Self::Unix
    }
}

/// The name in titles: `unix`, `tcp`, `tls`, or the delay in milliseconds.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::Tcp => f.write_str("tcp"),
            Self::Tls => f.write_str("tls"),
            Self::Relay { delay } => write!(f, "{}ms", delay.duration().as_secs_f64() * 1e3),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unix => serializer.serialize_str("unix"),
            Self::Tcp => serializer.serialize_str("tcp"),
            Self::Tls => serializer.serialize_str("tls"),
            Self::Relay { delay } => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("delay", delay)?;
                map.end()
            }
        }
    }
}

struct NetworkVisitor;

impl<'de> Visitor<'de> for NetworkVisitor {
    type Value = Network;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"unix\", \"tcp\", \"tls\", or { delay = \"1ms\" }")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Network, E> {
        match text {
            "unix" => Ok(Network::Unix),
            "tcp" => Ok(Network::Tcp),
            "tls" => Ok(Network::Tls),
            _ => Err(E::custom(format!(
                "unknown network \"{text}\": write \"unix\", \"tcp\", \"tls\", or {{ delay = \"1ms\" }}"
            ))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Network, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "delay" {
                return Err(A::Error::unknown_field(&key, &["delay"]));
            }
            found = Some(map.next_value()?);
        }
        let delay = found.ok_or_else(|| A::Error::missing_field("delay"))?;
        Ok(Network::Relay { delay })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NetworkVisitor)
    }
}

impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let delay = generator.subschema_for::<HumanDuration>();
        json_schema!({
            "description": "The network between clients and server: a Unix-domain socket, TCP over loopback, TLS over loopback, or TCP through a relay that adds this delay to each round trip.",
            "oneOf": [
                { "enum": ["unix", "tcp", "tls"] },
                {
                    "type": "object",
                    "properties": { "delay": delay },
                    "required": ["delay"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Serialize)]
    struct One {
        network: Network,
    }

    fn read(text: &str) -> Result<Network, String> {
        toml::from_str::<One>(&format!("network = {text}"))
            .map(|one| one.network)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn all_networks_are_parsed_and_displayed() {
        for (text, title) in [
            ("\"unix\"", "unix"),
            ("\"tcp\"", "tcp"),
            ("{ delay = \"0ms\" }", "0ms"),
            ("{ delay = \"0.1ms\" }", "0.1ms"),
            ("{ delay = \"1ms\" }", "1ms"),
            ("{ delay = \"1s\" }", "1000ms"),
        ] {
            let network = read(text).unwrap();
            assert_eq!(network.to_string(), title);
            let kept = serde_json::to_string(&network).unwrap();
            assert_eq!(serde_json::from_str::<Network>(&kept).unwrap(), network);
        }
    }

    #[test]
    fn an_unknown_network_is_rejected_with_the_valid_ones() {
        for text in ["\"udp\"", "{ delay = 1 }", "{ speed = \"1ms\" }", "{}"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("\"udp\"").unwrap_err().contains("write \"unix\""));
    }
}
