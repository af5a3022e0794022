//! Settings with which sessions start, and the command that changes them for certain sessions.
//!
//! PostgreSQL's `src/backend/utils/init/postinit.c`, `process_settings`: a value for a role in a database
//! comes before one for the role, then one for the database, one for all roles, and the server's.

use super::live_view::LiveView;
use super::names;

/// Whose sessions a setting is for; `None` if unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoleInDatabase<'a> {
    pub user: Option<&'a str>,
    pub database: Option<&'a str>,
}

impl RoleInDatabase<'_> {
    /// The value with which these sessions start.
    pub fn value<'a>(&self, view: &LiveView<'a>, name: &str) -> Option<&'a str> {
        let role = self.user.is_some().then_some(self.user);
        let database = self.database.is_some().then_some(self.database);
        let levels = [
            role.zip(database),
            role.map(|role| (role, None)),
            database.map(|database| (None, database)),
            Some((None, None)),
        ];
        let mut set = levels.into_iter().flatten();
        set.find_map(|(role, database)| at_level(view, role, database, name))
            .or_else(|| view.setting(name))
    }

    /// The command that sets it for these sessions. It is for the role, or the database if no role is
    /// known; but a value for the role in this database would come before it.
    pub fn command(&self, view: &LiveView<'_>, name: &str, value: &str) -> String {
        let (user, database) = (self.user, self.database);
        let has_both = at_level(view, user, database, name).is_some();
        let setting = format!("set {name} = {value}");
        match (user.map(names::identifier), database.map(names::identifier)) {
            (Some(user), Some(database)) if has_both => {
                format!("alter role {user} in database {database} {setting}")
            }
            (Some(user), _) => format!("alter role {user} {setting}"),
            (None, Some(database)) => format!("alter database {database} {setting}"),
            (None, None) => format!("{setting} -- in the session that runs the statement"),
        }
    }
}

fn at_level<'a>(
    view: &LiveView<'a>,
    role: Option<&str>,
    database: Option<&str>,
    name: &str,
) -> Option<&'a str> {
    let mut all = view.catalog.role_settings.iter();
    let found = all.find(|it| {
        it.name == name && it.role.as_deref() == role && it.database.as_deref() == database
    });
    found.map(|it| it.value.as_str())
}
