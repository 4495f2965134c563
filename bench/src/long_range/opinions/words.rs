//! What the texts are made of: invented places, things they have, words of praise and of blame, sentences.

/// Places.
pub const PLACES: [&str; 24] = [
    "Arlen", "Bellis", "Carrow", "Dorin", "Elmet", "Farrel", "Gorse", "Harrow", "Ilmen", "Jarrod", "Kessel", "Linden",
    "Morrow", "Norrel", "Orwin", "Pellam", "Quarle", "Rowan", "Selden", "Tarrant", "Ulmer", "Verran", "Wendell",
    "Yarrow",
];

/// Things.
pub const THINGS: [&str; 24] = [
    "bread", "bridge", "cellar", "coffee", "corner", "dinner", "garden", "harbour", "kitchen", "library", "market",
    "museum", "music", "office", "roof", "room", "school", "service", "soup", "square", "station", "street", "table",
    "view",
];

/// Praise.
pub const GOOD: [&str; 12] = [
    "bright", "clean", "crisp", "friendly", "generous", "lovely", "pleasant", "quick", "splendid", "superb", "tasty",
    "warm",
];

/// Blame.
pub const BAD: [&str; 12] =
    ["bland", "broken", "crowded", "damp", "dirty", "dreary", "greasy", "noisy", "rude", "shabby", "slow", "stale"];

/// Sentences with an opinion; `word` is one of praise or of blame.
pub const OPINIONS: [&str; 5] = [
    "{place}'s {thing} was {word}.",
    "At {place} the {thing} was {word}.",
    "The {thing} of {place} was {word}.",
    "{place} has a {word} {thing}.",
    "In {place} we found the {thing} {word}.",
];

/// Sentences without.
pub const FILLERS: [&str; 4] = [
    "We passed the {thing} on the way.",
    "The {thing} was next to the {thing}.",
    "Then we looked for another {thing}.",
    "It took a day to see the {thing}.",
];
