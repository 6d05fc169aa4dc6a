"""``fairseq-mm extract`` where --model is one of videos."""

import argparse
import sys

from fairseq_mm.errors import UserError

# options of videos, and of images: (name, flag)
VIDEO_OPTIONS = (
    ("frames_per_clip", "--frames-per-clip"),
    ("stride", "--stride"),
    ("fps", "--fps"),
    ("keep_damaged", "--keep-damaged"),
)
IMAGE_OPTIONS = (("layer", "--layer"), ("grid", "--grid"))


def refuse_options(args: argparse.Namespace, options: tuple[tuple[str, str], ...]) -> None:
    """
    Raises:
        UserError: naming an option that the model has no use for.
    """
    kind = "images" if options is IMAGE_OPTIONS else "videos"
    other = "videos" if options is IMAGE_OPTIONS else "images"
    for name, flag in options:
        if getattr(args, name):
            raise UserError(f"{flag}: is for models of {kind}, but {args.model} reads {other}.")


def extract_videos(
    args: argparse.Namespace, videos: list, output: str, *, device: str, workers: int
) -> int:
    """
    Args:
        args: of the command line.
        videos: what to extract.
        output: the feature store.
        device: where the network runs.
        workers: decoding processes.

    Returns:
        status: 0, or 130 after an interruption.
    """
    from fairseq_mm.extract.run_files import unreadable_path
    from fairseq_mm.extract.video_extraction import extract_videos_to_store, videos_path
    from fairseq_mm.extract.video_extractor import build_video_extractor
    from fairseq_mm.extract.videos import import_av

    import_av()
    extractor = build_video_extractor(
        args.model,
        weights=args.weights,
        seed=args.seed,
        device=device,
        precision="fp16" if args.fp16 else "bf16" if args.bf16 else "fp32",
        frames=args.frames_per_clip or 0,
        stride=args.stride or 0,
        fps=args.fps or 0.0,
        resize=args.resize or "",
        size=args.size or 0,
        resize_size=args.resize_size or 0,
        crop=args.crop or "",
        interpolation=args.interpolation or "",
        normalize=args.normalize or "",
    )
    try:
        summary = extract_videos_to_store(
            extractor,
            videos,
            output,
            batch_size=args.batch_size or (8 if device == "cpu" else 64),
            workers=workers,
            dtype=args.dtype,
            keep_damaged=args.keep_damaged,
            max_pixels=args.max_pixels,
            overwrite=args.overwrite,
            strict=args.strict,
            show_progress=True,
        )
    except KeyboardInterrupt:
        print(
            f"\ninterrupted: what is done stands in {output}.partial; the same command continues.",
            file=sys.stderr,
        )
        return 130
    what = f"{output}: {summary.num_videos} videos of {extractor.dim} channels, "
    what += f"{summary.num_unreadable} unreadable"
    if summary.num_unreadable:
        what += f" ({unreadable_path(output)})"
    if summary.num_damaged:
        what += f", {summary.num_damaged} damaged ({videos_path(output)})"
    if summary.was_finished:
        print(f"{what}; was finished before, nothing to do.")
        return 0
    seconds = max(summary.seconds, 1e-9)
    print(
        f"{what}; {summary.num_extracted} in this run, with {summary.num_clips} clips, "
        f"{summary.num_clips / seconds:.1f} a second "
        f"({summary.seconds_network / seconds:.0%} of the time in the network, "
        f"{summary.seconds_waiting / seconds:.0%} waiting for decoding)."
    )
    return 0
