//! Plain tables that fit in a terminal.

/// Lays out rows in columns two spaces apart. The last column is cut so that a
/// line has at most `width` characters.
pub fn render(header: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let columns = header.len();
    let mut widths: Vec<usize> = header.iter().map(|name| name.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let fixed: usize = widths[..columns - 1].iter().map(|width| width + 2).sum();
    let last = width.saturating_sub(fixed).max(8);
    let mut text = String::new();
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (number, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if number == columns - 1 {
                line.push_str(&cut(cell, last));
            } else {
                line.push_str(cell);
                line.push_str(&" ".repeat(width - cell.chars().count() + 2));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Text that a task can have chosen (paths, reasons, commands) without what a
/// terminal would obey.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As [`plain`], with a mark for what is not seen or turns the order of letters round: a
/// person is asked about this text.
pub fn seen(text: &str) -> String {
    let hidden = |c: char| {
        matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|c| if c.is_control() || hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// At most `width` characters, with an ellipsis in place of the rest.
pub fn cut(text: &str, width: usize) -> String {
    let line = plain(text);
    if line.chars().count() <= width {
        return line;
    }
    let mut short: String = line.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A length of time for people: the two largest units.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{:02} s", ms / 1000, ms % 1000 / 10),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How long ago, in the largest unit.
pub fn age(then_ms: i64, now_ms: i64) -> String {
    let seconds = (now_ms - then_ms).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_columns_hold() {
        let long = "x".repeat(300);
        let rows =
            vec![vec!["a".into(), "b".into(), long], vec!["ccc".into(), "d".into(), "e\nf".into()]];
        let text = render(&["name", "state", "why"], &rows, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("ccc   d      e f"), "{text}");
    }

    #[test]
    fn times() {
        assert_eq!(duration(7), "7 ms");
        assert_eq!(duration(1_234), "1.23 s");
        assert_eq!(duration(61_000), "1 min 1 s");
        assert_eq!(age(0, 7_200_000), "2 h");
        assert_eq!(age(5, 0), "0 s");
    }
}
