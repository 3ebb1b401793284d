//! Seeds that found a fault once, each with the law that it had broken, by the ground that they are of.

/// Of the first ground.
pub(super) const ON_FIRST: &[(&str, u64)] = &[
    ("a failed look makes no sandbox for a pod that is gone", 153),
    ("a restart count never goes down", 4),
    ("what was made and never started hides no back-off", 9),
    ("a run whose end nobody saw backs off", 10),
    ("volumes are not set up again beneath the clean-up", 2),
    ("starts in an old sandbox are no progress in a new one", 14),
    ("a failed look lets no pod live on that nobody wants", 118),
    ("a pod hears of its end while house is kept", 110),
    ("a pod that is over gets no new sandbox", 114),
    ("sidecars wait for starts that come through", 87),
    ("a run that was not to be is a run all the same", 163),
    ("what nothing tells of begins with init containers", 140),
    ("who could not be started waits for hooks before it", 6),
];

/// Of the second.
pub(super) const ON_SECOND: &[(&str, u64)] = &[
    ("what was made before a lost run does not hide it", 9),
    (
        "what could not be stopped after its hook failed is stopped later",
        942,
    ),
    ("what ran before a reboot is refused and has ended", 137),
    ("an older record does not hide that init is over", 1003),
    ("nothing begins before the agent knows what runs", 1055),
    ("nothing begins before the agent knows what runs", 1100),
    ("a failed look forgets nobody who ran before", 378),
    ("a failed look forgets nobody who ran before", 623),
    ("a pod that ends by itself has its own grace", 372),
    ("what was made and never started has its turn yet", 164),
];
