//! The lists and their columns.

/// The lists, by the key that shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopView {
    /// `1`: statements by load.
    Statements,
    /// `2`: sessions that wait.
    Waiting,
    /// `3`: who blocks whom.
    Blocking,
    /// `t`: tables.
    Tables,
    /// `4`: sessions that are active or in a transaction.
    Sessions,
    /// `f`: findings, what to do first at the top.
    Findings,
}

/// How many lists there are.
pub const VIEWS: usize = 6;

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct TopColumn {
    pub title: &'static str,
    /// The key that sorts by it after `s`; a blank if none does.
    pub letter: char,
    /// What the key sorts by, in words.
    pub meaning: &'static str,
    /// Its width; 0 for what is left of the line.
    pub width: usize,
    pub is_right: bool,
    /// It is left out on screens narrower than this.
    pub screen_min: usize,
}

const fn column(
    title: &'static str,
    (letter, meaning): (char, &'static str),
    (width, is_right, screen_min): (usize, bool, usize),
) -> TopColumn {
    TopColumn {
        title,
        letter,
        meaning,
        width,
        is_right,
        screen_min,
    }
}

const STATEMENTS: [TopColumn; 6] = [
    column("LOAD", ('l', "load"), (5, true, 0)),
    column("%", (' ', ""), (5, true, 0)),
    column("CALLS/s", ('c', "calls"), (8, true, 60)),
    column("MEAN", ('m', "mean time"), (9, true, 60)),
    column("BY WAIT", ('w', "time waited"), (12, false, 70)),
    column("STATEMENT", ('x', "text"), (0, false, 0)),
];

const WAITING: [TopColumn; 7] = [
    column("PID", ('p', "PID"), (7, true, 0)),
    column("% OF TIME", ('t', "time waited"), (9, true, 0)),
    column("WAIT", ('w', "wait event"), (20, false, 0)),
    column("BLOCKER", ('b', "blocker"), (7, true, 60)),
    column("USER", ('u', "user"), (8, false, 70)),
    column("APP", ('a', "application"), (12, false, 100)),
    column("STATEMENT", ('x', "text"), (0, false, 50)),
];

const BLOCKING: [TopColumn; 5] = [
    column("SESSION", (' ', ""), (12, false, 0)),
    column("FOR", (' ', ""), (7, true, 0)),
    column("STATE OR WAIT", (' ', ""), (27, false, 0)),
    column("RELATION", (' ', ""), (14, false, 70)),
    column("STATEMENT", (' ', ""), (0, false, 60)),
];

const TABLES: [TopColumn; 8] = [
    column("TABLE", ('n', "name"), (0, false, 0)),
    column("SCANS/s", ('s', "sequential scans"), (7, true, 0)),
    column("ROWS/SCAN", ('p', "rows per scan"), (10, true, 0)),
    column("ROWS/s", ('r', "rows read by scans"), (10, true, 70)),
    column("IDX SCANS/s", ('i', "index scans"), (11, true, 80)),
    column("WRITES/s", ('w', "writes"), (9, true, 0)),
    column("DEAD%", ('d', "dead rows"), (5, true, 60)),
    column("SIZE", ('z', "size"), (9, true, 60)),
];

const SESSIONS: [TopColumn; 9] = [
    column("PID", ('p', "PID"), (7, true, 0)),
    column("AGE", ('t', "age"), (7, true, 0)),
    column("STATE", ('e', "state"), (10, false, 0)),
    column("WAIT", ('w', "wait event"), (19, false, 70)),
    column("USER", ('u', "user"), (8, false, 40)),
    column("DB", ('d', "database"), (8, false, 90)),
    column("APP", ('a', "application"), (12, false, 110)),
    column("CLIENT", ('c', "client"), (15, false, 130)),
    column("STATEMENT", ('x', "text"), (0, false, 50)),
];

const FINDINGS: [TopColumn; 4] = [
    column("LOAD", ('l', "load, then urgency"), (5, true, 0)),
    column("SURE", ('c', "confidence"), (6, false, 70)),
    column("FINDING", ('n', "name"), (0, false, 0)),
    column("OBJECT", ('o', "object"), (24, false, 60)),
];

/// The columns of a list.
pub fn columns(view: TopView) -> &'static [TopColumn] {
    match view {
        TopView::Statements => &STATEMENTS,
        TopView::Waiting => &WAITING,
        TopView::Blocking => &BLOCKING,
        TopView::Tables => &TABLES,
        TopView::Sessions => &SESSIONS,
        TopView::Findings => &FINDINGS,
    }
}

/// The letters that a list can be sorted by, and what they mean.
pub fn sort_letters(view: TopView) -> impl Iterator<Item = (char, &'static str)> {
    let columns = columns(view).iter().filter(|it| it.letter != ' ');
    columns.map(|it| (it.letter, it.meaning))
}
