//! The commands of the documents for users: each is run, and prints what the page shows.
//!
//! A page has a machine of its own, as far as a mount namespace goes (`book/machine.sh`), and its blocks of code are run
//! there from top to bottom: a script (`sh`) has to succeed; a command of a session (`console`) prints what stands below it,
//! but for numbers (`book/shown.rs`); lines of an `fstab` go there. A block that cannot be run says why, in a comment
//! before it: `<!-- not run: REASON -->`, with a reason of [`NOT_RUN`].
//!
//! Needs `/dev/fuse`, root, loop devices and overlays; QUAYFS_SKIP_FUSE=1 and QUAYFS_SKIP_ROOT=1 do without.

mod shown;

use crate::blocks::{Block, Step, blocks, session};
use crate::docs::{messages_of_the_code, pages_of_users, root};
use crate::program::namespace::Namespace;
use crate::program::{QUAYFS, can_be_root, eventually};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Why a block of code is not run here, and what tries it instead.
const NOT_RUN: [(&str, &str); 9] = [
    (
        "takes persistent memory",
        "`make lab`, with an emulated NVDIMM",
    ),
    ("builds everything", "`make try-deb`, and each build"),
    (
        "is a test of its crate",
        "`cargo test -p quayfs-fs --examples`",
    ),
    (
        "takes a container engine",
        "by hand; what it does with mounts is run beside it",
    ),
    ("takes the kernel's NFS server", "`lab/run.sh nfs`"),
    (
        "takes a distributed engine",
        "`make remote`, with Ceph and NBD by FUSE",
    ),
    (
        "takes mount(8) of util-linux 2.39 or later",
        "tests/mount/idmap.rs, by the system call",
    ),
    ("takes udev", "tests/mount/media/one.rs"),
    (
        "serves until it is interrupted",
        "tests/mount/daemon.rs, tests/mount/trace.rs",
    ),
];

/// A comment before a block whose commands are run, but print what is true of another machine.
const ELSEWHERE: &str = "of another machine";

/// Pages whose commands others run.
const OTHERS: [(&str, &str); 4] = [
    ("semantics", "tests/mount/semantics.rs"),
    ("benchmarks", "measures for hours, on disks of its own"),
    ("performance", "as benchmarks"),
    ("conformance", "runs suites that are built elsewhere"),
];

/// Programs that documents call, by which a block shows that it is typed into a shell.
const PROGRAMS: [&str; 9] = [
    "quayfs",
    "make",
    "cargo",
    "mount",
    "umount",
    "sudo",
    "apt-get",
    "systemctl",
    "exportfs",
];

macro_rules! pages {
    ($($name:ident),* $(,)?) => {
        /// Pages that are run.
        const PAGES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                run_page(stringify!($name));
            }
        )*
    };
}

pages!(
    readme,
    install,
    backends,
    backup,
    changing,
    containers,
    daemon,
    doctor,
    embedding,
    nfs,
    quotas,
    remote,
    sizing,
    stats,
    status,
    troubleshooting,
    upgrade,
);

/// What a page is called here.
fn name(page: &Path) -> String {
    page.file_stem().unwrap().to_str().unwrap().to_lowercase()
}

fn text_of(page: &str) -> String {
    let found = pages_of_users().into_iter().find(|p| name(p) == page);
    fs::read_to_string(found.expect(page)).unwrap()
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for page in pages_of_users() {
        let name = name(&page);
        let text = fs::read_to_string(&page).unwrap();
        for block in blocks(&text) {
            let at = format!("{}:{}", page.display(), block.line);
            let calls = |line: &String| PROGRAMS.iter().any(|p| line.split(' ').next() == Some(p));
            if block.word.is_empty() && block.lines.iter().any(calls) {
                wrong.push(format!("{at}: commands: say `sh` or `console`, or `text`"));
            }
            let others = OTHERS.iter().any(|(other, _)| *other == name);
            if others || !(block.is_shell() || block.language() == "fstab") {
                continue;
            }
            match block
                .mark
                .as_deref()
                .map(|m| m.strip_prefix("not run: ").ok_or(m))
            {
                Some(Ok(why)) => match NOT_RUN.iter().find(|(reason, _)| *reason == why) {
                    Some((reason, instead)) => {
                        println!("{at}: not run, {why}; instead: {instead}");
                        used.push(*reason);
                    }
                    None => wrong.push(format!("{at}: {why:?} is no reason of NOT_RUN")),
                },
                _ if !PAGES.contains(&&*name) => wrong.push(format!("{at}: {name} is not run")),
                _ => {}
            }
        }
    }
    for (reason, _) in NOT_RUN {
        if !used.contains(&reason) {
            wrong.push(format!("{reason:?}: no block has that reason any more"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is there before the first command of a page.
fn before(page: &str) -> String {
    let volume = |options: &str| {
        format!(
            "quayfs mkfs /srv/vol --size 128M >/dev/null; quayfs mount -o {options} /srv/vol /mnt/q >/dev/null\n\
             mkdir /mnt/q/dir; echo text >/mnt/q/dir/file; ln -s dir/file /mnt/q/link; sync /mnt/q/dir/file\n"
        )
    };
    match page {
        "readme" => format!("cp -r '{}/src' src\n", root().display()),
        "install" | "backends" | "doctor" | "embedding" | "remote" => String::new(),
        "nfs" => volume("rw") + "quayfs umount /mnt/q\n",
        "troubleshooting" => volume("norestart"),
        _ => volume("rw"),
    }
}

/// Begins the output of a step.
const STEP: &str = "--- step";

/// Each step behind a line that says its number.
fn script(steps: &[(usize, Step)]) -> String {
    let mut script = String::new();
    for (n, (_, step)) in steps.iter().enumerate() {
        let typed = &step.typed;
        writeln!(script, "printf '\\n{STEP} {n}\\n'").unwrap();
        match step.shown {
            Some(_) => writeln!(script, "{typed}").unwrap(),
            None => writeln!(script, "set -e\n{typed}\nset +e").unwrap(),
        }
    }
    // Where it comes to its end, what has printed the right thing may have ended with any code.
    script + "exit 0\n"
}

/// What each step has printed, as lines.
fn printed(all: &str) -> Vec<Vec<String>> {
    let mut steps: Vec<Vec<String>> = Vec::new();
    for line in all.lines() {
        match (line.starts_with(STEP), steps.last_mut()) {
            (true, _) => steps.push(Vec::new()),
            (false, Some(step)) => step.push(line.trim_end().into()),
            (false, None) => {}
        }
    }
    for step in &mut steps {
        while step.last().is_some_and(String::is_empty) {
            step.pop();
        }
    }
    steps
}

/// The steps of a page's blocks, with the lines of the page that these begin at.
fn steps_of(text: &str) -> Vec<(usize, Step)> {
    let mut steps = Vec::new();
    for block in blocks(text) {
        let not_run = block
            .mark
            .as_ref()
            .is_some_and(|m| m.starts_with("not run"));
        if block.language() == "fstab" && !not_run {
            let typed = format!("cat >>/etc/fstab <<'END'\n{}\nEND", block.lines.join("\n"));
            steps.push((block.line, Step { typed, shown: None }));
        }
        if block.is_shell() && !not_run {
            steps.extend(
                block
                    .steps()
                    .into_iter()
                    .map(|s| (block.line, of(&block, s))),
            );
        }
    }
    steps
}

/// A step of this block. What is shown of another machine is compared with the code, not with what is printed.
fn of(block: &Block, step: Step) -> Step {
    match (block.mark.as_deref(), step.shown) {
        (Some(ELSEWHERE), Some(shown)) => {
            assert_known(&shown);
            Step {
                shown: Some(vec!["...".into()]),
                ..step
            }
        }
        (_, shown) => Step { shown, ..step },
    }
}

/// Asserts that the program can print these lines: what stands between numbers and names is in the code.
fn assert_known(shown: &[String]) {
    let code = messages_of_the_code();
    for line in shown.iter().filter(|l| *l != "...") {
        let said = line.trim_start().trim_start_matches("-> ");
        let (_, said) = said.split_once("  ").unwrap_or(("", said));
        let shape = shown::shape(said).replace(": ", " # ");
        for piece in shape.split('#').map(str::trim) {
            let known = piece.split(' ').count() < 3 || code.contains(piece);
            assert!(known, "{line}: no {piece:?} in the code");
        }
    }
}

/// A machine for one page.
struct Machine {
    shell: Namespace,
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, script) = (root().display(), include_str!("book/machine.sh").trim_end());
        let script = format!("QUAYFS='{QUAYFS}' ROOT='{root}'\n{script}");
        let shell = Namespace::new(dir.path(), Path::new(""), &script);
        Self { shell, dir }
    }

    /// Runs a script in `/srv`; its exit code and what it prints.
    fn run(&self, script: &str) -> (i32, String) {
        let file = self.dir.path().join("script");
        let own = "make() { command make --no-print-directory -C /srv/quayfs -o build QUAYFS=/usr/bin/quayfs \"$@\"; }";
        fs::write(&file, format!("exec 2>&1; cd /srv; {own}\n{script}")).unwrap();
        let env = [
            "env",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C",
            "TZ=UTC",
            "FSYNC_TIMES_SECONDS=0.05",
        ];
        let run = self
            .shell
            .run(&[&env[..], &["bash", file.to_str().unwrap()]].concat());
        (run.code, run.out + &run.err)
    }

    #[track_caller]
    fn must(&self, script: &str) -> String {
        let (code, said) = self.run(&format!("set -e\n{script}"));
        assert_eq!(code, 0, "{script}\n{said}");
        said
    }

    /// The daemon of `/mnt/q` dies, and the mount with it.
    fn kill_daemon(&self) {
        let pid = self.must("quayfs info /mnt/q --json | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'");
        let pid = pid.trim();
        self.must(&format!("kill -KILL {pid}"));
        eventually("the daemon's death", || {
            !Path::new(&format!("/proc/{pid}")).exists()
        });
        self.must("! ls /mnt/q 2>/dev/null");
    }

    /// Runs steps; what is wrong with the first one that is not as it should be.
    fn carry_out(&self, page: &str, steps: &[(usize, Step)]) -> Option<String> {
        let (code, said) = self.run(&script(steps));
        let printed = printed(&said);
        for ((line, step), lines) in steps.iter().zip(&printed) {
            let Some(shown) = &step.shown else { continue };
            if !shown::matches(shown, lines) {
                let (typed, shown, lines) = (&step.typed, shown.join("\n"), lines.join("\n"));
                return Some(format!(
                    "{page}:{line}: $ {typed}\nprints:\n{lines}\nand not:\n{shown}"
                ));
            }
        }
        let (line, step) = &steps[printed.len().max(1) - 1];
        let last = printed.last().map(|l| l.join("\n")).unwrap_or_default();
        let typed = &step.typed;
        (code != 0 || printed.len() < steps.len())
            .then(|| format!("{page}:{line}: exit code {code} of\n{typed}\n{last}"))
    }

    /// Unmounts all volumes, and checks the one in `/srv/vol`.
    fn end(&self) {
        self.must(
            "for m in $(findmnt --noheadings --list --output TARGET --types fuse.quayfs); do quayfs umount $m; done\n\
             [ ! -e /srv/vol ] || quayfs fsck --data /srv/vol",
        );
    }
}

impl Drop for Machine {
    /// A test that has failed leaves no daemon behind.
    fn drop(&mut self) {
        self.run("umount -i -l -a -t fuse.quayfs");
    }
}

fn run_page(page: &str) {
    let steps = steps_of(&text_of(page));
    if !can_be_root() || steps.is_empty() {
        return;
    }
    let machine = Machine::new();
    machine.must(&before(page));
    if page == "troubleshooting" {
        machine.kill_daemon();
    }
    let wrong = machine.carry_out(page, &steps);
    assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    if before(page).contains("/mnt/q/link") {
        let kept = machine
            .must("[ -e /mnt/q/link ] || quayfs mount /srv/vol /mnt/q >/dev/null; cat /mnt/q/link");
        assert_eq!(kept, "text\n", "{page}");
    }
    machine.end();
}

/// The lines of a picture of a terminal, which are in its description.
fn picture(name: &str) -> Vec<String> {
    let path = root().join(format!("docs/pictures/{name}.svg"));
    let svg = fs::read_to_string(path).unwrap();
    let (_, rest) = svg.split_once("<desc>").unwrap();
    let (text, drawn) = rest.split_once("</desc>").unwrap();
    let plain = |text: &str| {
        let text = text.replace("&lt;", "<").replace("&gt;", ">");
        text.replace("&amp;", "&")
    };
    let lines: Vec<String> = plain(text).lines().map(str::to_owned).collect();
    // What is described is what is drawn.
    let drawn: String = plain(&drawn.replace("</text>", "\n"));
    for word in lines.iter().flat_map(|l| l.split_whitespace()) {
        assert!(
            drawn.contains(word),
            "{name}: {word:?} is not in the picture"
        );
    }
    lines
}

/// What the pages of users load.
#[test]
fn pictures_are_small() {
    let pictures = fs::read_dir(root().join("docs/pictures")).unwrap();
    let mut n = 0;
    for picture in pictures.map(|entry| entry.unwrap()) {
        let (name, len) = (picture.file_name(), picture.metadata().unwrap().len());
        assert!((1..150 << 10).contains(&len), "{name:?}: {len} bytes");
        n += 1;
    }
    assert!(n > 0);
}

/// The picture on the first page is a session: it is run, and prints that.
#[test]
fn pictures_show_what_is_printed() {
    let lines = picture("doctor");
    let doctor = session(lines.iter().map(String::as_str));
    assert_known(doctor[0].shown.as_ref().unwrap());
    if !can_be_root() {
        return;
    }
    for name in ["first", "status"] {
        let lines = picture(name);
        let steps = session(lines.iter().map(String::as_str));
        let steps: Vec<_> = steps.into_iter().map(|s| (1, s)).collect();
        let machine = Machine::new();
        if name == "status" {
            machine.must(&before("status"));
        }
        let wrong = machine.carry_out(&format!("docs/pictures/{name}.svg"), &steps);
        assert!(
            wrong.is_none(),
            "{}\n`make pictures` makes it anew",
            wrong.unwrap_or_default()
        );
        machine.end();
    }
}
