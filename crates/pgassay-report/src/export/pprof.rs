//! The protocol buffer that `pprof` reads.
//!
//! See `proto/profile.proto` of github.com/google/pprof; field names are given next to their numbers.
//! The message has only two kinds of fields, variable-length integers and length-prefixed bytes, so
//! sixty lines replace a library with a code generator. It is not compressed: `pprof` reads both.
//!
//! Frames are functions, not addresses, so each has one location without an address, and its mapping
//! has `has_functions` set, so that viewers do not look for binaries.

use std::collections::HashMap;

use pgassay_model::profile::Profile;
use pgassay_record::observation::Observation;

use super::stacks::{self, WeightedStacks};

/// Strings by number; 0 is the empty string, as the format requires.
struct Strings {
    all: Vec<String>,
    index: HashMap<String, u64>,
}

impl Strings {
    fn new() -> Self {
        Self {
            all: vec![String::new()],
            index: HashMap::from([(String::new(), 0)]),
        }
    }

    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.index.get(text) {
            return number;
        }
        let number = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.index.insert(text.to_owned(), number);
        number
    }
}

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// An integer field; zero is the default and is not written.
    fn integer(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Repeated integers, packed into one field.
    fn packed(&mut self, field: u64, values: impl IntoIterator<Item = u64>) {
        let mut packed = Self::default();
        for value in values {
            packed.varint(value);
        }
        self.bytes(field, &packed.0);
    }
}

/// The file's content.
pub(super) fn message(observation: &Observation, weighed: &WeightedStacks<'_>) -> Vec<u8> {
    let profile = &*weighed.profile;
    let mut strings = Strings::new();
    let mut out = Message::default();
    // Viewers show the last sample type by default.
    out.bytes(1, &value_type(&mut strings, "samples", "count"));
    out.bytes(1, &value_type(&mut strings, weighed.value, "nanoseconds"));
    let ns_per_sample = weighed.us_per_sample * 1000.0;
    for (stack, samples) in stacks::stacks_of(profile) {
        let mut sample = Message::default();
        // location_id, leaf first; ids start at 1, since 0 means none.
        sample.packed(1, stack.iter().rev().map(|frame| u64::from(*frame) + 1));
        let cpu_ns = (samples as f64 * ns_per_sample).round() as u64;
        sample.packed(2, [samples, cpu_ns]); // value
        out.bytes(2, &sample.0);
    }
    frames(&mut out, &mut strings, profile);
    let period_type = value_type(&mut strings, weighed.value, "nanoseconds");
    let comment = strings.number(&format!(
        "{}; pgassay {}",
        stacks::title(observation),
        observation.pgassay_version
    ));
    for text in &strings.all {
        out.bytes(6, text.as_bytes()); // string_table
    }
    out.integer(9, observation.started_us.max(0).unsigned_abs() * 1000); // time_nanos
    out.integer(10, (observation.window_us * 1000.0) as u64); // duration_nanos
    out.bytes(11, &period_type);
    out.integer(
        12,
        1_000_000_000 / u64::from(observation.frequency_hz.max(1)),
    ); // period
    out.packed(13, [comment]);
    out.0
}

/// Writes a mapping for each object, and a location and a function for each frame.
fn frames(out: &mut Message, strings: &mut Strings, profile: &Profile) {
    let mut objects: Vec<&str> = Vec::new();
    for (id, frame) in (1u64..).zip(&profile.frames) {
        let at = objects.iter().position(|object| *object == frame.object);
        let mapping_id = at.unwrap_or_else(|| {
            objects.push(&frame.object);
            objects.len() - 1
        }) as u64
            + 1;
        let mut line = Message::default();
        line.integer(1, id); // function_id
        let mut location = Message::default();
        location.integer(1, id);
        location.integer(2, mapping_id);
        location.bytes(4, &line.0);
        out.bytes(4, &location.0);
        let mut function = Message::default();
        let name = strings.number(&frame.label());
        function.integer(1, id);
        function.integer(2, name);
        function.integer(3, name); // system_name
        out.bytes(5, &function.0);
    }
    for (id, object) in (1u64..).zip(objects) {
        let mut mapping = Message::default();
        mapping.integer(1, id);
        mapping.integer(5, strings.number(object)); // filename
        mapping.integer(7, 1); // has_functions
        out.bytes(3, &mapping.0);
    }
}

fn value_type(strings: &mut Strings, kind: &str, unit: &str) -> Vec<u8> {
    let mut message = Message::default();
    message.integer(1, strings.number(kind));
    message.integer(2, strings.number(unit));
    message.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_written_seven_bits_at_a_time() {
        let mut message = Message::default();
        message.varint(1);
        message.varint(300);
        message.integer(1, 0);
        message.integer(2, 150);
        message.bytes(3, b"ab");
        assert_eq!(message.0, [1, 0xac, 2, 0x10, 0x96, 1, 0x1a, 2, b'a', b'b']);
    }
}
