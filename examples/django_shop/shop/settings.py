import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db"}}

JOBS = os.environ.get("BULLPEN_URL", f"sqlite:///{BASE_DIR / 'jobs.db'}")
TASKS = {
    "default": {
        "BACKEND": "bullpen.integrations.django.BullpenBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": JOBS, "max_retries": 3, "timeout": 60},
    }
}
