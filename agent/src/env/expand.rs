//! `$(VAR)` in values, commands and arguments.
//!
//! `$(NAME)` becomes the value of NAME where there is one and stays as it is where there is none; `$$` is a
//! literal dollar sign. Everything else is left alone.

use std::borrow::Cow;

/// Expands `text` with `lookup`.
pub fn expand<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v str>) -> Cow<'_, str> {
    if !text.contains('$') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        else {
            out.push('$');
            continue;
        };
        match lookup(name) {
            Some(value) => out.push_str(value),
            None => {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_follow_the_rules_of_the_api() {
        let lookup = |name: &str| match name {
            "A" => Some("a"),
            "EMPTY" => Some(""),
            "DOLLAR" => Some("$(A)"),
            _ => None,
        };
        for (text, expanded) in [
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)", "xaya"),
            ("[$(EMPTY)]", "[]"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$A $ $", "$A $ $"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$(DOLLAR)", "$(A)"),
            ("$(A)$$", "a$"),
        ] {
            assert_eq!(expand(text, lookup), expanded, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[$()Aä ]{0,20}") {
            let _ = expand(&text, |_| Some("v"));
        }
    }
}
