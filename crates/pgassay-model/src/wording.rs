//! Numbers of things, in words.

/// A number of things whose plural ends in `s`: `1 point`, `2 points`.
pub fn counted(count: usize, one: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {one}{s}")
}

/// A whole number with separated thousands: `26 079`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{counted, grouped};

    #[test]
    fn thousands_are_separated() {
        let all = [0.4, 999.0, 26_079.4, 1_935_183.0].map(grouped);
        assert_eq!(all, ["0", "999", "26 079", "1 935 183"]);
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(1, "trial"), "1 trial");
        assert_eq!(counted(0, "trial"), "0 trials");
        assert_eq!(counted(2, "trial"), "2 trials");
    }
}
