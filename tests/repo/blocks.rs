//! Blocks of code in the documents, and what is typed in them.

/// A block of code.
#[derive(Debug, Default)]
pub struct Block {
    /// Line of the document that it begins at, from 1 on.
    pub line: usize,
    /// What stands behind its fence.
    pub word: String,
    /// The comment just before it.
    pub mark: Option<String>,
    pub lines: Vec<String>,
}

/// Something that is typed.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    pub typed: String,
    /// What is printed then, of a session. A script does not say.
    pub shown: Option<Vec<String>>,
}

impl Block {
    /// The language.
    pub fn language(&self) -> &str {
        self.word.split(' ').next().unwrap_or_default()
    }

    /// It is typed into a shell.
    pub fn is_shell(&self) -> bool {
        ["sh", "console"].contains(&self.language())
    }

    /// What is typed: of a session what stands behind the prompts.
    pub fn typed(&self) -> String {
        let steps = self.steps();
        steps.iter().map(|s| format!("{}\n", s.typed)).collect()
    }

    /// Each command of a session with what it prints; a script is one step.
    pub fn steps(&self) -> Vec<Step> {
        if self.language() != "console" {
            let typed = self.lines.join("\n");
            return vec![Step { typed, shown: None }];
        }
        session(self.lines.iter().map(String::as_str))
    }
}

/// The commands of a session: behind a prompt, `$` or `#`, and behind `>` where they go on.
pub fn session<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in lines {
        if let Some(typed) = ["$ ", "# "].iter().find_map(|p| line.strip_prefix(p)) {
            steps.push(Step {
                typed: typed.into(),
                shown: Some(Vec::new()),
            });
            continue;
        }
        let last = steps.last_mut();
        let last = last.unwrap_or_else(|| panic!("a session begins with a command, not {line:?}"));
        let shown = last.shown.get_or_insert_default();
        match line.strip_prefix("> ") {
            Some(more) if shown.is_empty() => last.typed += &format!("\n{more}"),
            _ => shown.push(line.into()),
        }
    }
    steps
}

/// All blocks of a document.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut all: Vec<Block> = Vec::new();
    let (mut open, mut before) = (false, "");
    for (n, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open) {
            (Some(word), false) => all.push(Block {
                line: n + 1,
                word: word.into(),
                mark: comment(before),
                lines: Vec::new(),
            }),
            (None, true) => all.last_mut().unwrap().lines.push(line.into()),
            _ => {}
        }
        open ^= fence.is_some();
        if !line.trim().is_empty() {
            before = line;
        }
    }
    all
}

/// What a line says that is nothing but a comment.
fn comment(line: &str) -> Option<String> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inner.trim().into())
}

#[test]
fn blocks_and_their_steps_are_recognized() {
    let text =
        "a\n```sh\nb\n```\n\n<!-- not run: why -->\n```console x\n$ d\ne\n> f\n# g\n> h\n```\n";
    let found = blocks(text);
    let typed: Vec<_> = found.iter().map(Block::typed).collect();
    assert_eq!(typed, ["b\n", "d\ng\nh\n"]);
    assert_eq!(found[0].mark, None);
    assert_eq!(found[1].mark.as_deref(), Some("not run: why"));
    assert_eq!((found[1].line, found[1].language()), (7, "console"));
    assert_eq!(found[0].steps()[0].shown, None);
    let shown: Vec<_> = found[1].steps().into_iter().map(|s| s.shown).collect();
    assert_eq!(shown, [Some(vec!["e".into(), "> f".into()]), Some(vec![])]);
}
