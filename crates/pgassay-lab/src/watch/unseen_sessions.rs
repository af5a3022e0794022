//! Sessions that the server does not show.

/// Sessions at a reading that the server does not show: their load is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct UnseenSessions {
    /// They belong to other users.
    pub hidden: u32,
    /// They have `track_activities` off.
    pub disabled: u32,
}

impl UnseenSessions {
    /// Why the hidden ones are not shown.
    pub fn why_hidden(self) -> String {
        match self.hidden {
            1 => "1 session belongs to another user, and the server does not show what it does"
                .to_owned(),
            several => format!(
                "{several} sessions belong to other users, and the server does not show what they do"
            ),
        }
    }

    /// Why the disabled ones are not shown.
    pub fn why_disabled(self) -> String {
        match self.disabled {
            1 => "1 session has track_activities off, so it does not show what it does".to_owned(),
            several => format!(
                "{several} sessions have track_activities off, so they do not show what they do"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unseen_session_is_not_several() {
        let one = UnseenSessions {
            hidden: 1,
            disabled: 1,
        };
        assert!(
            one.why_hidden()
                .starts_with("1 session belongs to another user,")
        );
        assert!(
            one.why_disabled()
                .starts_with("1 session has track_activities off, so it does")
        );
        let two = UnseenSessions {
            hidden: 2,
            disabled: 2,
        };
        assert!(
            two.why_hidden()
                .starts_with("2 sessions belong to other users,")
        );
        assert!(
            two.why_disabled()
                .starts_with("2 sessions have track_activities off, so they do")
        );
    }
}
