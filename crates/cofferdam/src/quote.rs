//! One word as the languages of schedulers have it. Each takes text without control
//! characters and gives what is read as exactly that text.

/// What needs no quotes in any of them.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,@+=".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

/// A word of a POSIX shell.
pub fn sh(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A word of a shell in a line of a crontab.
///
/// There `%` ends the command and `\%` stands for it (crontab(5)). Outside of the quotes,
/// since a cron without that rule leaves the backslash to the shell. Crons differ in what
/// becomes of two backslashes, so one that is meant is printed by the shell.
pub fn cron(text: &str) -> String {
    let word = text.chars().map(|c| match c {
        '\'' => r"'\''".to_owned(),
        '%' => r"'\%'".to_owned(),
        '\\' => r#"'"$(printf '\134')"'"#.to_owned(),
        other => other.to_string(),
    });
    if is_plain(text) { text.to_owned() } else { format!("'{}'", word.collect::<String>()) }
}

/// A word of `ExecStart=` (systemd.service(5), "Command lines").
pub fn exec_start(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { assignment(&text.replace('$', "$$")) }
}

/// A word of `Environment=`, where `$` is no other letter (systemd.exec(5)).
pub fn assignment(text: &str) -> String {
    format!("\"{}\"", percent(&text.replace('\\', r"\\").replace('"', r#"\""#)))
}

/// A value of a unit that is no list of words: `%` begins a specifier (systemd.unit(5)).
pub fn percent(text: &str) -> String {
    text.replace('%', "%%")
}

/// A double-quoted scalar of YAML: a string of JSON, without the line ends of YAML 1.1.
pub fn yaml(text: &str) -> String {
    let json = serde_json::to_string(text).expect("text serialises");
    json.replace('\u{2028}', r"\u2028").replace('\u{2029}', r"\u2029")
}

/// Text in a workflow of GitHub's, where `${{` begins an expression.
pub fn github(text: &str) -> String {
    text.replace("${{", "${{ '${{' }}")
}

/// Text in an argument or a variable of Kubernetes, where `$(NAME)` is another variable
/// and `$$` a `$`.
pub fn kubernetes(text: &str) -> String {
    text.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_need_no_quotes_have_none() {
        for text in ["--output=report.csv", "/srv/reports/a_b.csv", "x@y:z,1+2"] {
            assert_eq!(
                (sh(text), cron(text), exec_start(text)),
                (text.into(), text.into(), text.into())
            );
        }
        assert_eq!((sh(""), cron(""), exec_start("")), ("''".into(), "''".into(), "\"\"".into()));
    }

    #[test]
    fn each_language_has_its_own_quotes() {
        let text = r#"it's 100% "$HOME" \n"#;
        assert_eq!(sh(text), r#"'it'\''s 100% "$HOME" \n'"#);
        assert_eq!(cron(text), r#"'it'\''s 100'\%' "$HOME" '"$(printf '\134')"'n'"#);
        assert_eq!(exec_start(text), r#""it's 100%% \"$$HOME\" \\n""#);
        assert_eq!(assignment(text), r#""it's 100%% \"$HOME\" \\n""#);
        assert_eq!(yaml(text), r#""it's 100% \"$HOME\" \\n""#);
        assert_eq!(yaml("a\u{2028}b"), r#""a\u2028b""#);
        assert_eq!(github("a ${{ b }}"), "a ${{ '${{' }} b }}");
        assert_eq!(kubernetes("$(HOME) $$"), "$$(HOME) $$$$");
    }
}
