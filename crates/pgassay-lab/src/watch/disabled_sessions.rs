//! Why sessions have `track_activities` off.

use pgassay_model::check::Check;
use pgassay_record::activity::{Activity, CatalogActivity};

/// What turns it on.
pub(super) const FIX: &str = "alter system set track_activities = on; select pg_reload_conf()";

/// Whether the server has it on.
pub(super) fn is_on(catalog: &CatalogActivity) -> bool {
    let mut settings = catalog.settings.iter();
    settings.any(|(name, value)| name == "track_activities" && value == "on")
}

/// Corrects what is said of these sessions if the server has it on: then it is off for them only.
pub(super) fn explain(unavailable: &mut [Check], is_on: bool) {
    let entries = unavailable.iter_mut();
    for entry in entries.filter(|it| is_on && it.name == Activity::DISABLED_SESSIONS) {
        entry.fix = Some(
            "the server has it on: these sessions set it off, or their role or database does (pg_db_role_setting); \
             alter role … reset track_activities, and connect again"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a setting that was on was to be switched on, because one session had it off.
    #[test]
    fn track_activities_is_not_to_be_switched_on_where_it_is_on() {
        let fix = |value: &str| {
            let setting = ("track_activities".to_owned(), value.to_owned());
            let catalog = CatalogActivity {
                settings: vec![setting],
                ..CatalogActivity::default()
            };
            let mut entries = [Check {
                name: Activity::DISABLED_SESSIONS.to_owned(),
                value: "limited".to_owned(),
                limitation: None,
                fix: Some(FIX.to_owned()),
            }];
            explain(&mut entries, is_on(&catalog));
            let [entry] = entries;
            entry.fix.expect("a fix")
        };
        assert!(fix("on").contains("role or database"));
        assert!(fix("off").starts_with("alter system"));
    }
}
