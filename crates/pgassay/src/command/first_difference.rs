//! Where two plans differ.

use serde_json::Value;

/// The first place in which two values differ, with both.
pub fn first_difference(path: &str, before: &Value, now: &Value) -> Option<String> {
    match (before, now) {
        _ if before == now => None,
        (Value::Object(before), Value::Object(now)) => {
            let value = |of: &serde_json::Map<String, Value>, name: &str| {
                of.get(name).cloned().unwrap_or(Value::Null)
            };
            let mut names = before.keys().chain(now.keys());
            names.find_map(|name| {
                let (before, now) = (value(before, name), value(now, name));
                first_difference(&format!("{path}.{name}"), &before, &now)
            })
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            let mut both = before.iter().zip(now).enumerate();
            both.find_map(|(index, (before, now))| {
                first_difference(&format!("{path}[{index}]"), before, now)
            })
        }
        _ => Some(format!("{path} is {}, was {}", shown(now), shown(before))),
    }
}

/// A value as JSON, cut if it is long.
fn shown(value: &Value) -> String {
    const LENGTH_MAX: usize = 100;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_of_two_plans_is_named() {
        let before = json!({"points": [{"clients": 1}, {"clients": 2, "text": "select 1;"}]});
        assert_eq!(first_difference("plan", &before, &before), None);
        let mut now = before.clone();
        now["points"][1]["text"] = json!("select 2;");
        let found = first_difference("plan", &before, &now).unwrap();
        assert_eq!(
            found,
            "plan.points[1].text is \"select 2;\", was \"select 1;\""
        );
        now["points"] = json!([]);
        let found = first_difference("plan", &before, &now).unwrap();
        assert!(found.starts_with("plan.points is [], was [{"), "{found}");
        let found = first_difference("plan", &json!({}), &json!({"seed": 1}));
        assert_eq!(found.unwrap(), "plan.seed is 1, was null");
    }
}
