"""Limits of detection and diagnosis; frozen on training recordings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DetectionSettings:
    """Limits, each in the unit that ends its name.

    warmup_s, warmup_steps     nothing is found before a subject was seen this long
    tail_quantile, tail_ratio  a step is long above `tail_ratio` times this quantile of usual ones
    evidence_nats              log likelihood ratio of long steps from which a spike is believed
    backed_nats                the same where a signal backs the long steps: a hand rule has a
                               strength, 0..1, of at least `backing`
    told_nats                  the same where hardware has told of a fault of the subject's own GPU
    persistent_frames          long steps in so many of the last `persistence_frames` frames
    usual_long_share           long steps that are taken for usual before any was seen
    least_long_share           share of long steps below which there is no impact
    stalled_s                  a step that has not ended for so long counts as long each second
    calm_frames                a spike has ended after so many frames without evidence
    hold_back_frames           how long frames wait before they count as usual
    signal_window_s            usual seconds that signals are compared with
    fade_s, least_steps        how usual step times are forgotten (`StepBaseline`)
    slow_fade_s                the same of the slow reference, against slow degradation
    shift_settle_frames        a lasting shift without a cause is a new phase after so many frames
    give_up_frames             so long a spike of unknown cause is what is usual now
    cause_window_s             seconds since the onset that a cause is read from
    doubt_frames               doubtful frames in a row that are kept from what is usual
    own_write_spreads          spreads of the subject's own writes from which slow steps are its own
    suspicion                  strength of a hand rule, 0..1, above which a shift has a cause
    repeat_s                   a standing spike is diagnosed again after so long
    incident_s, incident_ratio persistence and impact of an incident
    subjects, cgroups          most that are kept in mind
    forget_s                   a subject unseen for so long is forgotten
    """

    warmup_s: float = 10.0
    warmup_steps: int = 30
    tail_quantile: float = 0.99
    tail_ratio: float = 1.3
    evidence_nats: float = 12.0
    backed_nats: float = 6.0
    backing: float = 0.6
    told_nats: float = 4.5
    persistent_frames: int = 2
    persistence_frames: int = 3
    usual_long_share: float = 0.003
    least_long_share: float = 0.01
    stalled_s: float = 1.0
    calm_frames: int = 4
    hold_back_frames: int = 5
    signal_window_s: int = 90
    fade_s: float = 60.0
    least_steps: float = 400.0
    slow_fade_s: float = 1800.0
    shift_settle_frames: int = 8
    give_up_frames: int = 600
    cause_window_s: int = 5
    doubt_frames: int = 30
    own_write_spreads: float = 10.0
    suspicion: float = 0.35
    repeat_s: float = 5.0
    incident_s: float = 20.0
    incident_ratio: float = 1.5
    subjects: int = 64
    cgroups: int = 256
    forget_s: float = 30.0
