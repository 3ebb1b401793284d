//! `$(VAR)` in values, commands and arguments.
//!
//! `$(NAME)` becomes the value of NAME where there is one and stays as it is where there is none; `$$` is a
//! literal dollar sign. Everything else is left alone. Nothing grows beyond what a program can be given: a variable may
//! be made of the one before it several times, and so on for as many variables as a pod has.

use std::borrow::Cow;
use std::collections::HashMap;

/// Longest string that a program can be given, bytes without the NUL behind it: the kernel's MAX_ARG_STRLEN, see execve(2).
pub const LONGEST: usize = 128 * 1024 - 1;
/// Most that all strings of a program's arguments and environment may have together, each with a NUL and a pointer:
/// the kernel's most, whatever the limit of its stack. See execve(2).
pub const MOST: usize = 6 << 20;
/// What a string costs beside its bytes.
pub const OVERHEAD: usize = 1 + size_of::<usize>();

/// A text that has become longer than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Words that no program can be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// One is too long.
    #[error(
        "word {0} of {1} is longer than the {LONGEST} bytes that a program can be given at once"
    )]
    Word(usize, &'static str),
    /// They are too many or too long together.
    #[error("{0} has more than the {MOST} bytes that a program can be given")]
    Words(&'static str),
}

/// Variables by name, to be looked up often. Of those with one name the last counts.
#[derive(Debug, Default)]
pub struct Variables<'v>(HashMap<&'v str, &'v str>);

impl<'v> Variables<'v> {
    /// The variables that `words` may refer to: none where they refer to nothing.
    pub fn of<'w>(
        words: impl IntoIterator<Item = &'w String>,
        variables: impl Iterator<Item = (&'v str, &'v str)>,
    ) -> Self {
        let mut words = words.into_iter();
        match words.any(|word| word.contains("$(")) {
            true => Self(variables.collect()),
            false => Self::default(),
        }
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&'v str> {
        self.0.get(name).copied()
    }
}

/// Expands the words of a command or its arguments, called `what` in errors.
pub fn expand_words<'w>(
    what: &'static str,
    words: impl IntoIterator<Item = &'w String>,
    variables: &Variables<'_>,
) -> Result<Vec<String>, WordsError> {
    let mut bytes = 0;
    let words = words.into_iter().enumerate();
    words
        .map(|(at, word)| {
            let word = expand(word, |name| variables.get(name), LONGEST)
                .map_err(|TooLong| WordsError::Word(at + 1, what))?;
            bytes += word.len() + OVERHEAD;
            match bytes > MOST {
                true => Err(WordsError::Words(what)),
                false => Ok(word.into_owned()),
            }
        })
        .collect()
}

/// Expands `text` with `lookup` to at most so many bytes.
pub fn expand<'t, 'v>(
    text: &'t str,
    lookup: impl Fn(&str) -> Option<&'v str>,
    most: usize,
) -> Result<Cow<'t, str>, TooLong> {
    let fits = |so_far: usize, more: &str| match so_far + more.len() > most {
        true => Err(TooLong),
        false => Ok(()),
    };
    if !text.contains('$') {
        return fits(0, text).map(|()| Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len().min(most));
    let mut push = |part: &str| {
        fits(out.len(), part)?;
        out.push_str(part);
        Ok(())
    };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        push(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            push("$")?;
            rest = after;
            continue;
        }
        let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        else {
            push("$")?;
            continue;
        };
        match lookup(name) {
            Some(value) => push(value)?,
            None => {
                push("$(")?;
                push(name)?;
                push(")")?;
            }
        }
        rest = after;
    }
    push(rest)?;
    Ok(Cow::Owned(out))
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
            assert_eq!(expand(text, lookup, 100).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn nothing_is_expanded_to_more_than_it_may_have() {
        let lookup = |name: &str| (name == "A").then_some("1234");
        for (text, most, fits) in [
            ("$(A)$(A)", 8, true),
            ("$(A)$(A)", 7, false),
            ("$(A)x", 4, false),
            ("plain", 5, true),
            ("plain", 4, false),
            ("$(UNKNOWN)", 9, false),
            ("$$$$", 1, false),
        ] {
            assert_eq!(expand(text, lookup, most).is_ok(), fits, "{text} {most}");
        }
    }

    #[test]
    fn words_are_what_a_program_can_be_given() {
        let long = "x".repeat(LONGEST);
        let variables = [("A", "wrong"), ("A", long.as_str()), ("B", "b")];
        let expanded = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            let variables = Variables::of(&words, variables.into_iter());
            expand_words("args", &words, &variables).map_err(|error| error.to_string())
        };
        let words = expanded(&["$(A)", "$(B)$(NO)"]);
        assert_eq!(words, Ok(vec![long.clone(), "b$(NO)".to_owned()]));
        assert_eq!(
            expanded(&["$(B)", "$(A)$(B)"]),
            Err(
                "word 2 of args is longer than the 131071 bytes that a program can be given at once"
                    .to_owned()
            )
        );
        assert_eq!(
            expanded(&["$(A)"; 48]),
            Err("args has more than the 6291456 bytes that a program can be given".to_owned())
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[$()Aä ]{0,20}") {
            let _ = expand(&text, |_| Some("v"), 30);
        }
    }
}
