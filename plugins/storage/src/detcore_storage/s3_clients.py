"""Connect to an S3 bucket: obstore transfers files, and botocore provides what obstore lacks.

obstore does not read profiles, SSO sessions or addresses from AWS's files, has no calls for
unfinished uploads, and cannot list a key such as ``a//b``
(https://github.com/developmentseed/obstore/issues/429).
"""

from __future__ import annotations

import datetime
import functools
from typing import TYPE_CHECKING, Any

import botocore.config
import botocore.configprovider
import botocore.session
from obstore.store import S3Store

from detcore_storage.retries import NO_CREDENTIALS

if TYPE_CHECKING:
    from detcore_storage.storage_settings import S3Settings


class S3Clients:
    """Connections to a bucket, with the credentials at the time of creation.

    Args:
        settings: Settings of the bucket.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._session = botocore.session.get_session()
        if settings.access_key is not None and settings.secret_key is not None:
            self._session.set_credentials(
                settings.access_key.get_secret_value(), settings.secret_key.get_secret_value()
            )
        self._endpoint = settings.endpoint_url or self._find_endpoint()
        path_style = settings.path_style
        self._is_path_style = self._endpoint is not None if path_style is None else path_style
        self._timeout_s = settings.deadline_s / 4
        self._connect_timeout_s = min(10.0, self._timeout_s)

    def close(self) -> None:
        """Release the store, which references this object through its credential provider.

        Python's garbage collector does not see that reference, so neither object would be freed.
        """
        vars(self).pop("store", None)

    @functools.cached_property
    def store(self) -> S3Store:
        """The bucket for obstore."""
        endpoint = self._endpoint
        options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint.rstrip("/")}
        timeout = datetime.timedelta(seconds=self._timeout_s)
        return S3Store(
            self._settings.bucket,
            prefix=self._settings.prefix,
            region=self._region,
            virtual_hosted_style_request=not self._is_path_style,
            # Over HTTPS, TLS already detects changed bytes. A second checksum (SHA-256, for the
            # signature) would cost more than everything else, and AWS's tools omit it, too.
            unsigned_payload=endpoint is None or endpoint.startswith("https://"),
            credential_provider=self._provide_credentials,
            client_options={
                "allow_http": True,
                "timeout": timeout,
                "connect_timeout": datetime.timedelta(seconds=self._connect_timeout_s),
            },
            retry_config={
                "max_retries": 1000,  # the timeout ends the retries
                "retry_timeout": timeout,
                "backoff": {
                    "base": 2,
                    "init_backoff": datetime.timedelta(seconds=0.1),
                    "max_backoff": datetime.timedelta(seconds=5),
                },
            },
            **options,
        )

    @functools.cached_property
    def botocore(self) -> Any:
        """The S3 client of botocore."""
        return self._session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=self._endpoint,
            config=botocore.config.Config(
                s3={"addressing_style": "path" if self._is_path_style else "auto"},
                connect_timeout=self._connect_timeout_s,
                read_timeout=self._timeout_s,
                # botocore would draw its pauses from the generator that training uses.
                retries={"total_max_attempts": 1},
            ),
        )

    @property
    def _region(self) -> str:
        region = self._settings.region or self._session.get_config_variable("region")
        return region if isinstance(region, str) else "us-east-1"

    def _provide_credentials(self) -> Any:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise PermissionError(NO_CREDENTIALS)
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(credentials, "_expiry_time", None),
        }

    def _find_endpoint(self) -> str | None:
        """Return the address in the environment or the profile (``AWS_ENDPOINT_URL``)."""
        endpoint = botocore.configprovider.ConfiguredEndpointProvider(
            full_config=self._session.full_config,
            scoped_config=self._session.get_scoped_config(),
            client_name="s3",
        ).provide()
        return endpoint if isinstance(endpoint, str) else None
