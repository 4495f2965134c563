//! Links of the repository's pages lead somewhere: the file is there, and so is the heading. Addresses of other sites are not asked.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// A page: its links, and the anchors that links to it may name.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// The anchor that a heading gets: lower case, spaces as hyphens, nothing but letters, digits, hyphens and underscores.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Values of an attribute in a piece of HTML.
fn attributes(html: &str, name: &str) -> Vec<String> {
    let mark = format!("{name}=\"");
    html.split(&mark).skip(1).filter_map(|rest| rest.split_once('"')).map(|(value, _)| value.to_string()).collect()
}

fn page(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    let options = Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES | Options::ENABLE_FOOTNOTES;
    for event in Parser::new_ext(text, options) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let slug = slug(&heading.take().unwrap_or_default());
                // Of equal headings the later ones are numbered.
                let named = (0..).map(|n| if n == 0 { slug.clone() } else { format!("{slug}-{n}") });
                let free = named.into_iter().find(|name| !page.anchors.contains(name));
                page.anchors.extend(free);
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string());
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                for name in ["href", "src"] {
                    page.links.extend(attributes(&html, name));
                }
                for name in ["id", "name"] {
                    page.anchors.extend(attributes(&html, name));
                }
            }
            _ => {}
        }
    }
    page
}

/// What is wrong with the links of `pages`, by path from the root; `there` says whether another file is.
fn dangling(pages: &BTreeMap<PathBuf, Page>, there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let mut to =
                if file.is_empty() { path.clone() } else { path.parent().unwrap_or(Path::new("")).to_path_buf() };
            let mut outside = false;
            for part in Path::new(file).components() {
                match part {
                    Component::ParentDir => outside |= !to.pop(),
                    Component::Normal(name) => to.push(name),
                    Component::CurDir => {}
                    Component::RootDir | Component::Prefix(_) => outside = true,
                }
            }
            let found = pages.get(&to);
            let fine = match (found, anchor) {
                _ if outside => false,
                (Some(page), Some(anchor)) => page.anchors.contains(anchor),
                (Some(_), None) => true,
                // An anchor of what is no page, such as a line of a source file, is not looked at.
                (None, _) => there(&to),
            };
            if !fine {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    wrong
}

/// Every page below a folder, but for what builds, tools and other repositories put there.
fn collect(root: &Path, at: &Path, pages: &mut BTreeMap<PathBuf, Page>) {
    for entry in std::fs::read_dir(root.join(at)).expect("a readable folder") {
        let entry = entry.expect("readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = at.join(&name);
        let kind = entry.file_type().expect("a kind");
        let skipped = matches!(name.as_str(), "target" | "build" | "node_modules" | "venv" | "shared" | "corpus");
        let hidden = name.starts_with('.') && !matches!(name.as_str(), ".github" | ".ci");
        if kind.is_dir() && !skipped && !hidden && !root.join(&path).join(".git").exists() {
            collect(root, &path, pages);
        } else if kind.is_file() && path.extension().is_some_and(|e| e == "md") {
            let text = std::fs::read_to_string(root.join(&path)).expect("text");
            pages.insert(path, page(&text));
        }
    }
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !root.join("docs").is_dir() {
        println!("SKIPPED: packaged without docs");
        return;
    }
    let mut pages = BTreeMap::new();
    collect(&root, Path::new(""), &mut pages);
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    assert!(pages.len() >= 15 && links >= 60, "{} pages, {links} links: are they all looked at?", pages.len());
    let wrong = dangling(&pages, &|path| root.join(path).exists());
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn what_dangles_is_seen() {
    let one = "# The `first` page\n\n[a](b/two.md#part-2) [b](#the-first-page) [c](b/two.md#part-1-1) ![d](d.svg)\n\
               [e](three.md) [f](#nowhere) [g](b/two.md#part) [h](https://example.org/#x) [i](../../out.md) <img src=\"none.svg\">\n\
               ```text\n[not a link](of-code.md)\n```\n";
    let two = "# Part, 2\n\n## Part 1\n\n## Part 1\n\n<a id=\"here\"></a> [back](../one.md#the-first-page) [here](#here) [line](../d.svg#L3)\n";
    let pages = [("one.md", one), ("b/two.md", two)].map(|(path, text)| (PathBuf::from(path), page(text)));
    let wrong = dangling(&BTreeMap::from(pages), &|path| path == Path::new("d.svg"));
    let want = ["three.md", "#nowhere", "b/two.md#part", "../../out.md", "none.svg"];
    assert_eq!(wrong, want.map(|link| format!("one.md: {link}")));
}
