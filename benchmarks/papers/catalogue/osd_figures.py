"""Figures of Online Speculative Decoding."""

from __future__ import annotations

from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import PaperEntry
from benchmarks.papers.experiments import arithmetic, distilled_drafts, routes, shares, streams, traffic

VICUNA = "Vicuna-7B with LLaMA-160M, k = 5, updates every 8 requests"
TRAFFIC = (
    "A stream of all domains that ship with osd, each one's share rising and falling, is served with a route for each "
    "language, and again with one for each taught topic; shares of routes in outcomes against those of prompts."
)

FIGURES = (
    PaperEntry("Figure 1", "Overview", "A diagram.", not_reproduced="a diagram of the method; "
               "[architecture.md](architecture.md) has ours"),
    PaperEntry(
        "Figure 2", "Languages and topics in Arena", "Shares of languages other than English, and of topics.",
        ran=TRAFFIC, experiment=traffic.MAKE_UP,
        claims=(
            Claim("What was served tells each language's share, to 0.05.", "language_share_off", -0.05, 0.05),
            Claim("It tells each topic's share, to 0.05.", "topic_share_off", -0.05, 0.05),
        ),
        differs="No Arena: two languages and four topics, in shares that are chosen, so what is judged is whether "
        "they are told. Outcomes keep the route, not language and topic apart.",
    ),
    PaperEntry(
        "Figure 3", "Online acceptance over requests, against drafts distilled offline",
        f"{VICUNA}: OSD starts lower than a draft distilled on a tenth of the data, rises swiftly, and comes up to "
        "the draft distilled on all of it.",
        ran="`osd bench online`: data sets one after another, an update every 8 requests that is waited for, the "
        "draft alone; then a draft distilled for two epochs on each set, and drafts distilled on answers to other "
        "prompts of it, a tenth as many and more. All read the served texts. Figures are of each set's last third, "
        "those of the begin of the first set's first tenth.",
        experiment=shares.SHARES_OF_DATA,
        claims=(
            Claim("Online learning raises acceptance by 0.1 or more (0.1 to 0.65 there).", "online_minus_frozen",
                  0.1),
            Claim("It starts lower than a draft distilled on a tenth of the data.", "begin_minus_tenth",
                  at_most=0.0),
            Claim("It ends higher than that.", "end_minus_tenth", 0.0),
            Claim("Learning online comes up to a draft distilled offline on all of the data: 95 % of its α or more.",
                  "online_vs_offline", 0.95, question="Is online as good as offline?"),
        ),
        differs="Data sets share one stream. The draft distilled on all of the data has seen the very texts that "
        "it reads.",
    ),
    PaperEntry(
        "Figure 4", "Distribution shift: four sets one after another",
        f"{VICUNA}, 2,000 prompts of each set: α dips where the set changes and comes back quickly, like a draft "
        "distilled on 70 to 100 % of the set.",
        ran="As Figure 3, in every set but the first; drafts distilled on 30, 50, 70 and 100 % as many answers to "
        "other prompts of the set (small: two sets, not 50 %).",
        experiment=shares.SHARES_OF_DATA,
        claims=(
            Claim("α dips where the set changes: a set's first tenth is below its end.", "late_minus_early", 0.0),
            Claim("After a change of data set α is back, at 90 % of where it ends, within 150 requests.",
                  "requests_to_recover", at_most=150, question="How fast after a change?"),
            Claim("Right after a change it is like a draft distilled on 30 % or slightly below: by 0.1 at most.",
                  "after_change_minus_30", -0.1, 0.02),
            Claim("At a set's end it is as good as one distilled on 70 %, to 0.01.", "end_minus_70", -0.01),
            Claim("It is as good as one distilled on 100 %, to 0.01.", "end_minus_100", -0.01),
        ),
    ),
    PaperEntry(
        "Figure 5", "Arena by language and by topic",
        f"{VICUNA}: + 0.1 to 0.2 for every language with fewer than 2,000 requests; above 0.6 in every topic.",
        ran="`benchmarks routes`: mixed traffic of all data sets, a draft for each, found by topic; against the "
        "frozen draft on the same texts, last third of each; beside it a draft for each language, found by language.",
        experiment=routes.ROUTED,
        claims=(
            Claim("Acceptance rises by 0.1 or more in every domain.", "least_gain_of_learning", 0.1),
            Claim("It comes above 0.6 in every domain.", "least_alpha", 0.6),
            Claim("It rises by 0.1 or more in every language, with a draft for each (prompts of several languages).",
                  "least_gain_of_learning_by_language", 0.1),
        ),
        differs="The data sets' domains in place of Arena's languages and topics.",
    ),
    PaperEntry(
        "Figure 6", "One draft against a draft for each topic", f"{VICUNA}: + 0.1 to 0.2 in every topic.",
        ran="As Figure 5, against a single draft that learns from the same traffic.",
        experiment=routes.ROUTED,
        claims=(
            Claim("A draft for each domain is better than one, in every domain.", "least_gain_of_routes", 0.0),
            Claim("A draft for each language is better than one, in every language (prompts of several).",
                  "least_gain_of_language_routes", 0.0),
            Claim("A draft for each domain brings 0.1 of α or more over one for all, on average.",
                  "gain_of_routes", 0.1, question="One draft, or one for each topic?"),
        ),
    ),
    PaperEntry(
        "Figure 7", "Precision and recall of frequent tokens",
        "Spider: both rise markedly for the 100 most frequent tokens, which are 72.2 % of all.",
        ran="As Table 6, over all data sets; a token's precision is how often it was right ÷ said, its recall "
        "right ÷ how often it is in the answers. Errors over tokens.",
        experiment=distilled_drafts.TOKENS,
        claims=(
            Claim("Precision of frequent tokens rises, by 0.1 or more on average.", "precision_gain", 0.1),
            Claim("So does recall.", "recall_gain", 0.1),
            Claim("Precision rises on every data set.", "least_precision_gain", 0.0),
            Claim("So does recall.", "least_recall_gain", 0.0),
            Claim("The 100 most frequent tokens are 70 % of all, or more.", "share_of_tokens", 0.7),
        ),
    ),
    PaperEntry(
        "Figure 8", "Speed-up over α", "Computed: a slow-down for small α; the curve is superlinear, doubling α "
        "more "
        "than doubles the speed-up.",
        ran="Eq. 1 over α from 0.05 to 0.95 for c = 0.05, 0.1, 0.2 and k = 5, 8.",
        experiment=arithmetic.SPEED_UP_SURFACE,
        claims=(
            Claim("At a small α (0.1) speculation slows down for each c and k.", "speed_up_at_alpha_0.1",
                  at_most=1.0),
            Claim("Doubling α more than doubles the speed-up somewhere.", "most_gain_of_doubling", 2.0),
            Claim("It does so everywhere.", "least_gain_of_doubling", 2.0),
        ),
    ),
    PaperEntry(
        "Figure 9", "Data mix: does the draft forget? (A.6)",
        f"{VICUNA}, Gsm8k and Alpaca mixed, updates from Gsm8k for 2,000 requests, then from Alpaca: Gsm8k's α "
        "stays "
        "when Alpaca's rises.",
        ran="`benchmarks routes --order apart`: two data sets mixed, one draft, which learns from the first alone "
        "in the first half and from the second alone in the second half; each one's last third of a half. Errors "
        "over requests of all seeds.",
        experiment=streams.DATA_MIX,
        claims=(
            Claim("What is learned first rises while it is learned.", "first_rises", 0.0),
            Claim("What is learned then rises, too.", "second_rises", 0.0),
            Claim("While one draft learns a second data set it forgets nothing of the first: at most 0.02 of its α.",
                  "forgotten", at_most=0.02, question="Does one draft forget?"),
        ),
    ),
    PaperEntry(
        "Figure 10", "Languages and topics over time",
        "Ten stretches of four months: shares of languages and topics vary.",
        ran=f"{TRAFFIC} Ten stretches; errors over them.", experiment=traffic.MAKE_UP,
        claims=(
            Claim("In a stretch the furthest language is told to 0.05, on average.", "language_off_by_stretch",
                  at_most=0.05),
            Claim("So is the furthest topic.", "topic_off_by_stretch", at_most=0.05),
        ),
        differs="As Figure 2; that shares vary is arranged.",
    ),
    PaperEntry(
        "Figure 11", "Abrupt and gradual shift (A.8)",
        f"{VICUNA}, Gsm8k to Spider: an abrupt change dips and recovers quickly, a gradual one hardly dips.",
        ran="`benchmarks routes`, one draft, two data sets, abrupt and linear, the second one's share rising in a "
        "straight line from the first request to the last: acceptance of an eighth of the stream before its middle "
        "less that of an eighth after. Errors over seeds.",
        experiment=streams.SHIFTS,
        claims=(
            Claim("Acceptance dips at an abrupt change.", "abrupt_dip", 0.0),
            Claim("It dips less at a gradual one.", "abrupt_minus_gradual_dip", 0.0),
        ),
    ),
)  # fmt: skip
