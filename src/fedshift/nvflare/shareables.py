"""Messages as NVFlare carries them, and what a server or a site decides by itself, in its startup kit."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from .. import study
from ..core.plugin import Frozen
from ..core.registry import validated
from ..engine.transport import Fault, Message, fault, packed, unpacked
from ..io.text import read_json
from ..study.plan import Plan
from ..study.settings import scale_of

TASK, KEY = "fedshift", "message"
"""Name of all tasks, and of the one entry of their data."""


class Settings(Frozen):
    """The file `local/fedshift.json` of a startup kit, which its owner writes.

    Attributes
    ----------
    folder : where the study works, with its results
    study : the study's YAML file, in this folder
    data : at a site, its table of images, in this folder
    restart : True for one job that may begin runs anew which were begun at this site
    rows, offers : what may leave a site: rows of single images under pseudonyms; what plug-ins derive from images
    threads : threads of the training
    """

    folder: Path
    study: str
    data: str = "images.csv"
    rows: bool = False
    offers: bool = False
    restart: bool = False
    threads: int = 1

    @classmethod
    def read(cls, context: FLContext) -> Settings:
        """Return the settings of this server or site. Raises UserErrors for a file that says something else."""
        file = Path(context.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir(), "fedshift.json")
        settings: Settings = validated(cls, read_json(file), f"{file}")
        return settings

    def plan(self) -> Plan:
        """Return the study; the current folder is that of the settings."""
        return study.load(Path(self.study), scale_of())


def shareable_of(message: Message | Fault) -> Shareable:
    """Return a message, or the fault in its place, as NVFlare carries it."""
    return Shareable({KEY: packed(message)})


def message_of(shareable: Shareable) -> Message | Fault:
    """Return the message that came, or a fault where NVFlare has an error in its place."""
    code = shareable.get_return_code()
    if code != ReturnCode.OK or KEY not in shareable:
        return fault(f"NVFlare says {code}; see the log of the site")
    content = shareable[KEY]
    return unpacked(content) if isinstance(content, bytes) else Fault("what came is not a message of fedshift")
